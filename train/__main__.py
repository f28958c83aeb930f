"""`python -m muster.train`."""

from .demo.main import main

if __name__ == "__main__":  # spawned ranks import this file too
    main()
