"""The hosts file, and what the driver knows of each host."""
