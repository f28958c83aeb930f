"""Tells a command of the stalls and the end of a job."""
