"""What the driver knows about the hosts before it plans. Pure: `cluster` gathers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from ..decode import AtMost, Between, Like
from .bounds import AbsolutePath, Address, Bytes, Count, Interface, Name, Version, Words


@dataclass(frozen=True)
class Facts:
    """A host, as its agent describes it. None means that the software is not installed there."""

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
    addresses: Annotated[tuple[Address, ...], AtMost(4096)]
    interfaces: Annotated[Mapping[Address, Interface], AtMost(4096)]
    """The interface of each address."""
    mpi_error: Words | None = None
    """Why mpirun could not say its version."""
    memory: Bytes | None = None
    """Bytes of the machine's memory."""
