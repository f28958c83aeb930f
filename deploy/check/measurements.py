"""What `fab check` knows of the hosts. Pure: gathered by `examine`, judged by `check`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import HostError
from ..hosts.facts import Facts


@dataclass(frozen=True)
class Folder:
    """A place where jobs write: bytes free there, and what a write said if it failed."""

    path: str
    free: int | None
    error: str | None


@dataclass(frozen=True)
class Gpu:
    """One GPU: memory in MiB, uncorrected memory errors since the driver was loaded, processes on it."""

    index: int
    used: int
    total: int
    ecc: int
    pids: tuple[int, ...]


@dataclass(frozen=True)
class JobProcesses:
    """Processes of one job on a host; `kept`: its keeper lives, so the job is running and not left over."""

    job: str
    pids: tuple[int, ...]
    kept: bool


@dataclass(frozen=True)
class Health:
    """One host, as its keeper measured it. Sizes in bytes; a limit of -1 is none."""

    user: str
    own_addresses: tuple[str, ...]
    """What its own name resolves to."""
    folders: tuple[Folder, ...]
    shm_free: int | None
    nofile: int
    memlock: int
    rdma: bool
    gpus: tuple[Gpu, ...]
    gpu_error: str | None
    driver: str | None
    driver_cuda: str | None
    torch_cuda: str | None
    nccl: str | None
    jobs: tuple[JobProcesses, ...]
    image: Mapping[str, str] = field(default_factory=dict)
    """What the node image records of itself: flavor, track, the version of each part; empty without one."""


@dataclass(frozen=True)
class Clock:
    """Seconds that a host's clock is ahead of the driver's, and by how much that may be wrong."""

    ahead: float
    uncertainty: float


@dataclass(frozen=True)
class Reached:
    """How one host reaches another: the own interface by address of the other, and why not, by address."""

    interfaces: Mapping[str, str | None] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Examined:
    """One host that answered."""

    facts: Facts
    health: Health
    clock: Clock
    addresses: tuple[str, ...]
    """Where other hosts tried to reach it."""
    meeting: int | HostError
    """The port where they tried, or why it could give none."""
    reached: Mapping[str, Reached]
    """Itself and every other host, as reached from here."""


@dataclass(frozen=True)
class Examination:
    """Every host: what it is, or why it could not be asked."""

    hosts: Mapping[str, Examined]
    errors: Mapping[str, HostError]
