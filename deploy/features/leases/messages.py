"""The leases of a host's GPUs, as its agent describes them (features/leases/on_host/leases.py)."""

from __future__ import annotations

from typing import Annotated, Literal

from ...core.connect.requests import Nothing, Request
from ...core.decode import AtMost, Like, lazy_dataclass
from ...core.hosts.bounds import MOST_GPUS, Count, Name, Seconds, Text

Kind = Literal["nvidia", "amd", "ascend", "none"]
MOST_CLAIMS = 1 << 12


@lazy_dataclass(frozen=True)
class Device:
    """A GPU or NPU, and who has it: the job of a lease, or a process without one; empty if it is free.

    The texts are those of other users.
    """

    index: Count
    name: Annotated[str, Like(r"[\w-]{1,96}")]
    """Its UUID, if it is NVIDIA's."""
    user: Name = ""
    job: Name = ""
    since: Seconds = 0.0
    process: Name = ""

    @property
    def is_free(self) -> bool:
        """Whether nobody has it."""
        return not (self.job or self.process or self.user)


Devices = Annotated[tuple[Device, ...], AtMost(MOST_GPUS)]


@lazy_dataclass(frozen=True)
class Lease:
    """The devices that a job has, or would get now; and others with the reason why it does not get them."""

    kind: Kind
    ready: bool
    """Whether there are as many as it wants."""
    all: Count
    """The number of GPUs out of which it may get some."""
    mig: bool
    """Whether a GPU of the host is divided by MIG."""
    got: Devices
    taken: Devices
    arrived: Seconds = 0.0
    """When it came into the queue, by the clock of the host; 0 if it does not wait."""
    beside: Annotated[tuple[Name, ...], AtMost(8)] = ()
    """Other users who lease GPUs there, if setup has made no folder for that."""


@lazy_dataclass(frozen=True)
class WaitingJob:
    """A job that waits for devices of a host."""

    user: Name
    job: Name
    since: Seconds
    number: Count


@lazy_dataclass(frozen=True)
class HostLeases:
    """The GPUs of a host, and the jobs that wait, the first one first."""

    kind: Kind
    gpus: Devices
    waiting: Annotated[tuple[WaitingJob, ...], AtMost(MOST_CLAIMS)]
    problem: Text = ""
    """Why the GPUs or their leases are not known."""


LEASE = Request("lease", Lease)
LEASE_END = Request("lease_end", Nothing)
LEASES = Request("leases", HostLeases)
