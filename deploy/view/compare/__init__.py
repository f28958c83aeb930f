"""The comparison of runs: what differs between them first, then their results."""
