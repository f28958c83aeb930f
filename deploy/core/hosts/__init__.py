"""The hosts file, and the facts of each host."""
