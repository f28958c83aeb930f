"""Everything that happens in a job, as one stream: screen, run folder and progress are views of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..connect.reports import Report
from ..text.progress import Text
from .feature_event import FeatureEvent
from .job_events import JobEvent


@dataclass(frozen=True)
class Output:
    """Output of a rank: whole lines, and at its end also a part of a line."""

    rank: int
    host: str
    stream: str
    text: str


@dataclass(frozen=True)
class LauncherOutput:
    """A line of mpirun or torchrun."""

    host: str
    text: str
    spawned: bool
    """Whether it is of a process that MPI_Comm_spawn has started."""


@dataclass(frozen=True)
class Said:
    """A line of the driver for the user."""

    text: str


@dataclass(frozen=True)
class Stage:
    """What the job does now, for a line of progress; an empty text while the ranks run."""

    show: Text


@dataclass(frozen=True)
class Waiting:
    """The reason why the job waits before its first start."""

    why: str


@dataclass(frozen=True)
class Reported:
    """A report of a host for the features that hear its kind (`Feature.hears`). It is not verified."""

    host: str
    report: Report


@dataclass(frozen=True)
class Recorded:
    """An entry of `recorded` in job.json: other machines read it while the job runs (`JobState.recorded`)."""

    name: str
    value: Any
    """A text of a feature; of "saving", the ranks that still handle SIGTERM."""


Event: TypeAlias = (
    JobEvent | Output | LauncherOutput | Said | Stage | Waiting | Reported | Recorded | FeatureEvent
)
Emit: TypeAlias = Callable[[Event], None]


def printed_by_program(event: Event) -> str:
    """The output of a rank, or of a process that it has spawned; empty for any other event."""
    if isinstance(event, Output) or (isinstance(event, LauncherOutput) and event.spawned):
        return event.text
    return ""


def drop(event: Event) -> None:
    """Drop an event."""
