"""The comparison of runs: their differences, then their results."""
