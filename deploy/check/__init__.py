"""Measures hosts, judges what was measured, and says what to do."""
