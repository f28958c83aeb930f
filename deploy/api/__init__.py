"""Launches from Python: `from muster import launch, run` (docs/how-to/python.md)."""
