"""What is asked about jobs, also by another driver than theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from ...common.files import PART
from ...decode import AtMost, Like
from ...hosts.bounds import MOST_HOSTS, Bytes, Count, Name, Number, Path, Pid, Seconds, Words
from .request import MOST_ENTRIES, Nothing, Payload, Request

_Log = Annotated[str, AtMost(512)]
_JobId = Annotated[str, Like(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}")]
"""It becomes a path on the driver."""


@dataclass(frozen=True)
class Driver:
    """The process that drives a job."""

    host: Name
    pid: Pid


@dataclass(frozen=True)
class JobState:
    """A job as its folder tells of it; `ended` and `exit_status` are None as long as there is no result."""

    job: _JobId
    state: Literal["waiting", "running", "done", "failed", "lost"]
    """`waiting`: in the queue of Slurm (deploy/slurm/batch_runs.py)."""
    launcher: Name
    hosts: Annotated[tuple[Name, ...], AtMost(MOST_HOSTS)]
    ranks: Count
    attempt: Count
    detached: bool
    started: Seconds
    ended: Seconds | None
    exit_status: Number | None
    why: Words
    last_line: Words
    folder: Path
    driver: Driver
    driver_folder: Path

    @property
    def running(self) -> bool:
        """Whether the job goes on, or will."""
        return self.state in {"waiting", "running"}


@dataclass(frozen=True)
class Jobs:
    """The jobs of a place."""

    jobs: Annotated[tuple[JobState, ...], AtMost(1 << 14)]


@dataclass(frozen=True)
class Printed:
    """What ranks printed, each text with the name of its log, and whether there is more."""

    output: Annotated[tuple[tuple[_Log, Annotated[str, AtMost(1 << 20)]], ...], AtMost(1 << 18)]
    more: bool


@dataclass(frozen=True)
class Told:
    """Whether the driver of a job could be told."""

    told: bool


@dataclass(frozen=True)
class RunFiles:
    """The files of a run with their sizes, in bytes."""

    files: Annotated[tuple[tuple[Path, Bytes], ...], AtMost(MOST_ENTRIES)]


JOBS = Request("jobs", Jobs)
OUTPUT = Request("output", Printed)
RECORD = Request("record", Nothing)
END_DRIVER = Request("end_driver", Told)
FILES = Request("files", RunFiles)
READ = Request("read", Payload, PART)
DETACH = Request("detach", Nothing)
