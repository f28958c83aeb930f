"""Functions that are called in ranks, and their values."""
