"""Measures this host and its ranks."""
