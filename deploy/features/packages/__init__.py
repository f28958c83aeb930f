"""Environments of packages: locked here, made once on every host."""
