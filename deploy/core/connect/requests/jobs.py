"""Requests about jobs, also from other drivers than theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Annotated, Literal

from ...decode import AtMost, OnlyValid, lazy_dataclass
from ...errors import MusterError
from ...hosts.bounds import (
    MOST_GPUS,
    MOST_HOSTS,
    Bytes,
    Count,
    JobId,
    Name,
    Number,
    Path,
    Pid,
    Rank,
    Seconds,
    Text,
)
from ...wire.files import CHUNK_BYTES
from .request import MOST_ENTRIES, Nothing, Payload, Request

_Log = Annotated[str, AtMost(512)]
_Numbers = Annotated[tuple[Count, ...], AtMost(MOST_GPUS)]


@lazy_dataclass(frozen=True)
class Driver:
    """The process that drives a job."""

    host: Name
    pid: Pid


@lazy_dataclass(frozen=True)
class LeftOut:
    """A host that an attempt does not use any more."""

    host: Name
    why: Text


@lazy_dataclass(frozen=True)
class JobState:
    """The record of a job in its folder; `ended` and `exit_status` are None as long as there is no result."""

    job: JobId
    state: Literal["waiting", "running", "done", "failed", "stopped", "lost"]
    """`waiting`: its ranks have no hosts yet. `stopped`: a user ended it."""
    launcher: Name
    hosts: Annotated[tuple[Name, ...], AtMost(MOST_HOSTS)]
    ranks: Rank
    attempt: Count
    detached: bool
    started: Seconds
    ended: Seconds | None
    exit_status: Number | None
    why: Text
    last_line: Text
    folder: Path
    driver: Driver
    driver_folder: Path
    placed: Annotated[tuple[Rank, ...], AtMost(MOST_HOSTS)] = ()
    """The number of ranks of each host; the first ranks are on the first host."""
    spares: Annotated[tuple[Name, ...], AtMost(MOST_HOSTS)] = ()
    """The hosts without ranks that are ready for the next attempt."""
    gpus: Annotated[Mapping[Name, _Numbers], AtMost(MOST_HOSTS)] = field(default_factory=dict)
    """The numbers of the GPUs of its ranks, on each host where they are chosen."""
    left_out: Annotated[tuple[LeftOut, ...], AtMost(MOST_HOSTS)] = ()
    """The hosts that have left the job, each with the reason."""
    grace: Seconds = 0.0
    """Seconds that its ranks have for SIGTERM at a stop."""
    cause: Text = ""
    """The lines of its verdict that explain the failure."""
    recorded: Annotated[Mapping[Name, Text], AtMost(64)] = field(default_factory=dict)
    """What features record of a running job: a text for each name, which its feature reads."""
    saving: Annotated[tuple[Rank, ...], AtMost(MOST_ENTRIES)] = ()
    """The ranks of a job that is being ended that still handle SIGTERM."""
    user: Text = ""
    """The user who launched it; of a job of an older version, the owner of its record."""
    arrived: Seconds = 0.0
    """When it began, but no later than the machine with the record made its files: the order of jobs."""
    head: Name = ""
    """The host with the record; of a job of an older version, the first of its hosts."""

    @property
    def head_name(self) -> str:
        """The host whose record of the job counts; empty before it has hosts."""
        return self.head or next(iter(self.hosts), "")

    @cached_property
    def hosts_by_rank(self) -> dict[int, str]:
        """The host of each rank. `MusterError` for a record of an older version, which lacks that."""
        if len(self.placed) != len(self.hosts) or sum(self.placed) != self.ranks:
            text = "its record does not list the hosts of its ranks: it was launched by another version"
            raise MusterError(f"{self.job}: {text}")
        pairs = zip(self.hosts, self.placed, strict=True)
        return dict(enumerate(host for host, number in pairs for _ in range(number)))

    def require_own(self, rank: int, host: str, attempt: int) -> None:
        """`MusterError` for a record of this attempt that has a rank on a host which does not have it."""
        if self.placed and attempt == self.attempt and self.hosts_by_rank.get(rank) != host:
            text = f"a record of rank {rank} on {host}, where the plan does not have it"
            raise MusterError(f"{self.job}: {text}")

    @property
    def running(self) -> bool:
        """Whether the job runs, or waits to run."""
        return self.state in {"waiting", "running"}


@lazy_dataclass(frozen=True)
class JobList:
    """The jobs of a host. A malformed record costs only its own job."""

    jobs: Annotated[tuple[JobState, ...], AtMost(1 << 14), OnlyValid]


@lazy_dataclass(frozen=True)
class JobOutput:
    """Output of ranks, each text with the name of its log, and whether there is more.

    `at`: the bytes of `logs/order` that were read, from which another agent can continue.
    """

    output: Annotated[tuple[tuple[_Log, Annotated[str, AtMost(1 << 20)]], ...], AtMost(1 << 18)]
    more: bool
    at: Bytes


@lazy_dataclass(frozen=True)
class Told:
    """Whether the driver of a job was reached, and whether it was before."""

    told: bool
    again: bool = False


@lazy_dataclass(frozen=True)
class RunFiles:
    """The files of a run with their sizes, in bytes."""

    files: Annotated[tuple[tuple[Path, Bytes], ...], AtMost(MOST_ENTRIES)]


JOBS = Request("jobs", JobList)
OUTPUT = Request("output", JobOutput)
RECORD = Request("record", Nothing)
END_DRIVER = Request("end_driver", Told)
FILES = Request("files", RunFiles)
READ = Request("read", Payload, CHUNK_BYTES)
