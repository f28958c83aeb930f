"""A port of this machine connected to a port of a host."""
