"""Leases of GPUs, and hosts that launches leave out."""
