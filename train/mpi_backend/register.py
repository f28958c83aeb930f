"""The names that init_process_group knows the backend by."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist

NAME = "muster_mpi"
# What the tests run on. Between them torch changed the names of methods, and they may change again.
TESTED = ((2, 6), (2, 13), (2, 15))


def register() -> str:
    """Make `init_process_group("muster_mpi")` work, and "mpi" where torch leaves it free; returns the first.

    From torch 2.14 on the entry point in pyproject.toml calls this, without an import; torch 2.14 also lets
    "mpi" be registered. Before, torch itself refuses that name without an MPI of its own build.
    """
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version not in TESTED:
        tested = ", ".join(f"{major}.{minor}" for major, minor in TESTED)
        warnings.warn(f"{NAME} was tested with torch {tested}, not {torch.__version__}", stacklevel=2)
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])
    if version >= (2, 14) and not dist.is_mpi_available():
        dist.Backend.register_backend("mpi", create, extended_api=True, devices=["cpu", "cuda"])
    return NAME


def create(options: Any, _: Any = None) -> dist.ProcessGroup:
    """Return the group of `options.global_ranks_in_group`, or of all ranks; called on its members alone."""
    from .create import create_group  # noqa: PLC0415 - starts MPI, so only when it is used

    return create_group(options)
