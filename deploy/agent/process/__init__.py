"""Processes of this host, and commands without a job."""
