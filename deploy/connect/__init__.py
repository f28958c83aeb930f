"""The way to the hosts, and an agent on each."""
