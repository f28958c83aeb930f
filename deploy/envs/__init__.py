"""Environments of packages: locked here, made once on every host, and the differences between hosts."""
