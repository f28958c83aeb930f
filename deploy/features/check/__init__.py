"""Measures hosts, judges the measurements, and names remedies."""
