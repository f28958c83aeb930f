"""Processes that the out-of-memory killer ended."""
