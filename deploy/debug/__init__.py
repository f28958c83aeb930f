"""Looks into running jobs: an expression in every rank; connections to a port of a host."""
