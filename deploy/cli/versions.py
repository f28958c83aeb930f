"""`muster --version`."""

from __future__ import annotations

from importlib import metadata

DISTRIBUTIONS = {"Muster": "muster-cluster", "Fabric": "fabric", "Invoke": "invoke", "Paramiko": "paramiko"}


def versions() -> str:
    """The versions of Muster and of the packages below it, a line each."""
    return "".join(f"{name} {_version_of(distribution)}\n" for name, distribution in DISTRIBUTIONS.items())


def _version_of(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(not installed)"
