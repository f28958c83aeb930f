"""Leases of this host's GPUs."""
