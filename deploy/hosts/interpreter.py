"""The Python of an environment or an image, and what it brings for ranks. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from ..decode import Like
from .bounds import AbsolutePath, Version
from .facts import Facts


@dataclass(frozen=True)
class Interpreter:
    """A Python with its packages, and the Open MPI beside it."""

    executable: AbsolutePath
    python: Annotated[str, Like(r"\d{1,4}\.\d{1,4}[\w.+-]{0,64}")]
    torch: Version | None
    mpi4py: Version | None
    mpirun: AbsolutePath | None
    """Its own mpirun; None if it brings none."""
    mpi: Annotated[str, Like(r"\d{1,4}\.\d{1,4}\.\d{1,4}")] | None


def with_interpreter(facts: Facts, own: Interpreter, mpi_error: str | None = None) -> Facts:
    """What a launch finds on a host if its ranks run with this Python; without an Open MPI, with the host's.

    `mpi_error`: why its own Open MPI does not work.
    """
    known = replace(facts, executable=own.executable, python=own.python, torch=own.torch, mpi4py=own.mpi4py)
    if own.mpirun is None:
        return known
    return replace(known, mpirun=own.mpirun, mpi=own.mpi, mpi_error=mpi_error)
