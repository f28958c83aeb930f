"""Imports of ranks that are ready for the next attempt."""
