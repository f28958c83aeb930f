"""Ways to start an agent on a host."""
