"""Environments of packages, made on this host for `--requirements`."""
