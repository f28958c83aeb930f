"""The code that runs inside every rank, before its program."""
