"""The comparison of runs: what differs between them first, then what came of it."""
