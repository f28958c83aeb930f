"""What runs inside every rank, before its program."""
