"""Everything that happens in a job, as one stream: screen, run folder and progress are views of it.

A `JobEvent` is also a line in `runs/JOB/events.jsonl`, for programs to read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ..connect.reports import Report
from ..decode import lazy_dataclass
from ..plan.launch_plan import LaunchPlan
from ..text.progress import Text
from ..wire.clock import now
from .result import Failure, LaunchResult

if TYPE_CHECKING:  # most commands have no samples
    from ..hosts.host_sample import HostSample

FAILURES: Mapping[str, str] = {
    "rank": "rank.failed",
    "host": "host.lost",
    "network": "network.lost",
    "launcher": "launcher.failed",
    "start": "start.timeout",
    "placement": "placement.wrong",
    "world": "world.alone",
    "driver": "driver.failed",
    "interrupted": "job.interrupted",
    "stopped": "job.stopped",
}
"""The event of each kind of failure. A failure that a feature has found gives its own."""
LONGEST_TEXT = 2000
"""Characters of `text`: a host may have sent it."""


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """An event of a job. A field that does not apply to its type is None."""

    at: float
    """Seconds since the epoch, on the driver's clock."""
    type: str
    job: str
    attempt: int
    host: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    code: int | None = None
    """The exit code of a rank, negative for a signal."""
    printed: float | None = None
    """The time of the last output of a rank that has ended, or was cut off; None without output."""
    text: str = ""
    hosts: tuple[str, ...] | None = None
    ranks: int | None = None
    exit_status: int | None = None
    state: str | None = None
    """`done`, `failed` or `stopped`: of an attempt or job that has ended."""
    since: float | None = None
    """The time of the last progress, if there has been none since."""

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def of_failure(failure: Failure, plan: LaunchPlan) -> JobEvent:
    """The event of a failure in an attempt."""
    return JobEvent(
        at=failure.at,
        type=failure.event or FAILURES[failure.kind],
        job=plan.spec.job,
        attempt=plan.spec.attempt,
        host=failure.host,
        rank=failure.rank,
        text=failure.reason[:LONGEST_TEXT],
        exit_status=failure.exit_status,
    )


@lazy_dataclass(frozen=True)
class Output:
    """Output of a rank: whole lines, and at its end also a part of a line."""

    rank: int
    host: str
    stream: str
    text: str


@lazy_dataclass(frozen=True)
class LauncherOutput:
    """A line of mpirun or torchrun."""

    host: str
    text: str


@dataclass(frozen=True)
class Said:
    """A line of the driver for the user."""

    text: str


@dataclass(frozen=True)
class Stage:
    """What the job does now, for a line of progress; an empty text while the ranks run."""

    show: Text


@lazy_dataclass(frozen=True)
class Waiting:
    """The reason why the job waits before its first start."""

    why: str


@lazy_dataclass(frozen=True)
class Reported:
    """A report of a host for the features that hear its kind (`Feature.hears`). It is not verified."""

    host: str
    report: Report


@lazy_dataclass(frozen=True)
class Recorded:
    """An entry of `recorded` in job.json: other machines read it while the job runs (`JobState.recorded`)."""

    name: str
    value: Any
    """A text of a feature; of "saving", the ranks that still handle SIGTERM."""


class FeatureEvent:
    """An event that a feature defines, for the features that know it."""


FromHost: TypeAlias = "Output | LauncherOutput | HostSample | Reported"
Event: TypeAlias = "JobEvent | FromHost | Said | Stage | Waiting | Recorded | FeatureEvent"
Emit: TypeAlias = Callable[[Event], None]


MOST_FAILURES = 64
"""Failures of an attempt that become events. Only the first counts, and a host may send any number."""


class JobHistory:
    """Completes the events of a job and passes them on."""

    def __init__(self, job: str, pass_on: Callable[[JobEvent], None]) -> None:
        self._job, self._pass_on = job, pass_on
        self._attempt, self._over = 0, False
        self._printed: dict[int, float] = {}
        self._running: dict[int, str] = {}
        self._failures: set[tuple[str, str | None, int | None]] = set()

    def began(self, plan: LaunchPlan) -> None:
        self._attempt = plan.spec.attempt
        self._printed, self._running, self._failures = {}, {}, set()
        names = tuple(host.host.name for host in plan.hosts)
        self._pass_on(self._event("attempt.started", hosts=names, ranks=len(plan.ranks), text=plan.title))

    def add(self, event: JobEvent) -> None:
        if event.exit_status is not None:
            key = (event.type, event.host, event.rank)
            if key in self._failures or len(self._failures) >= MOST_FAILURES:
                return
            self._failures.add(key)
        if event.rank is not None and event.host and event.type == "rank.started":
            self._running[event.rank] = event.host
        if event.rank is not None and event.type == "rank.ended":
            self._running.pop(event.rank, None)
            event = dataclasses.replace(event, printed=self._printed.get(event.rank))
        self._pass_on(event)

    def output(self, event: Output) -> None:
        """The output of a rank; the first one is an event."""
        first = event.rank not in self._printed
        self._printed[event.rank] = now()
        if first:
            self._pass_on(self._event("rank.printed", host=event.host, rank=event.rank))

    def ended(self, result: LaunchResult) -> None:
        """The attempt has ended. Emit the failure event first if it is missing."""
        if result.failure:
            self.add(of_failure(result.failure, result.plan))
        for rank, host in sorted(self._running.items()):
            printed = self._printed.get(rank)
            self._pass_on(self._event("rank.cut-off", host=host, rank=rank, printed=printed))
        self._end("attempt.ended", result)

    def restarted(self, message: str, hosts: Sequence[str]) -> None:
        self._pass_on(self._event("job.restarted", text=message[:LONGEST_TEXT], hosts=tuple(hosts)))

    def verdict(self, result: LaunchResult) -> None:
        """The job is over; emitted once, even if an interrupt makes the driver end it again."""
        if not self._over:
            self._over = True
            self._end("job.ended", result)

    def _end(self, kind: str, result: LaunchResult) -> None:
        failure = result.failure
        self._pass_on(
            self._event(
                kind,
                host=failure.host if failure else None,
                rank=failure.rank if failure else None,
                text=failure.headline[:LONGEST_TEXT] if failure else "",
                exit_status=result.exit_status,
                state=result.state,
            )
        )

    def _event(self, kind: str, **fields: Any) -> JobEvent:
        return dataclasses.replace(
            JobEvent(at=now(), type=kind, job=self._job, attempt=self._attempt), **fields
        )
