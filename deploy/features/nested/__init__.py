"""Ranks that start launchers."""
