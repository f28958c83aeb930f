"""The facts of hosts before a launch: their software. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from ..decode import AtMost, Between, Like, lazy_dataclass
from .bounds import AbsolutePath, Address, Bytes, Count, Interface, JobId, Name, Text, Version


@dataclass(frozen=True)
class RunningJob:
    """A job on a host, by the processes of its ranks. Its user may have written anything in its texts."""

    job: JobId
    user: Name
    seconds: Annotated[float, Between(0, 1e10)]
    """Since its first rank started."""
    gpus: Annotated[tuple[Count, ...], AtMost(1024)]
    """The numbers of the GPUs that its ranks use."""


@dataclass(frozen=True)
class Facts:
    """A host, as its agent describes it. None: the software is not installed."""

    hostname: Name
    home: AbsolutePath
    uid: Count
    python: Annotated[str, Like(r"\d{1,4}\.\d{1,4}[\w.+-]{0,64}")]
    executable: AbsolutePath
    torch: Version | None
    mpi4py: Version | None
    mpirun: AbsolutePath | None
    mpi: Annotated[str, Like(r"\d{1,4}\.\d{1,4}\.\d{1,4}")] | None
    cores: Annotated[int, Between(1, 1 << 16)]
    gpus: Annotated[int, Between(0, 1024)]
    """NVIDIA's."""
    addresses: Annotated[tuple[Address, ...], AtMost(4096)]
    interfaces: Annotated[Mapping[Address, Interface], AtMost(4096)]
    """The interface of each address."""
    mpi_error: Text | None = None
    """Why mpirun did not print its version."""
    memory: Bytes | None = None
    """Bytes of the machine's memory."""
    jobs: Annotated[tuple[RunningJob, ...], AtMost(64)] = ()
    """The jobs that run there, of all users whose processes are visible."""
    devices: Annotated[int, Between(0, 1024)] = 0
    """The GPUs and NPUs of any maker."""

    @property
    def has_libuv(self) -> bool:
        """Whether this torch was built with libuv, which its stores ask for: Debian's was not."""
        return "+debian" not in (self.torch or "")


def minor(version: str) -> str:
    """`3.13` of `3.13.5`."""
    return ".".join(version.split(".")[:2])


@lazy_dataclass(frozen=True)
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
    """The facts of a host for ranks with this Python; without an Open MPI, with the host's.

    `mpi_error`: why its own Open MPI does not work.
    """
    changed = replace(facts, executable=own.executable, python=own.python, torch=own.torch, mpi4py=own.mpi4py)
    if own.mpirun is None:
        return changed
    return replace(changed, mpirun=own.mpirun, mpi=own.mpi, mpi_error=mpi_error)
