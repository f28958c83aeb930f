"""Hosts without ranks, so that a job can heal."""
