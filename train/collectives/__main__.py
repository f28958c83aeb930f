"""`python -m muster.train.collectives`."""

from .main import main

if __name__ == "__main__":  # not where --spawn imports this module again
    main()
