"""Connections to the hosts, with an agent on each."""
