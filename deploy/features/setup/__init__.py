"""Bare hosts become a cluster."""
