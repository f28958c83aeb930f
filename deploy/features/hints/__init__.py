"""Hints about the end of a job."""
