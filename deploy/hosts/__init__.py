"""The hosts file, and what the driver knows about each host."""
