"""Data sets of this host."""
