"""`python -m muster` is `muster`."""

from muster.deploy.cli.entry import main

if __name__ == "__main__":
    main()
