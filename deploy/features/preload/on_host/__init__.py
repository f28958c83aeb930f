"""Imports of ranks that are ready on this host."""
