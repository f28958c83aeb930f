"""Ranks in containers."""
