"""The events of a job, typed: a line each in `runs/JOB/events.jsonl`, for programs to read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from ..plan.launch_plan import LaunchPlan
from .result import Failure, Kind

EventType = Literal[
    "attempt.started",
    "rank.started",
    "rank.printed",
    "rank.lingers",
    "steps.stopped",
    "steps.resumed",
    "order.left",
    "rank.ended",
    "rank.cut-off",
    "rank.failed",
    "host.lost",
    "host.preloaded",
    "network.lost",
    "launcher.failed",
    "start.timeout",
    "placement.wrong",
    "world.alone",
    "job.stalled",
    "port.taken",
    "driver.failed",
    "job.interrupted",
    "job.stopped",
    "allocation.ended",
    "job.explained",
    "attempt.ended",
    "job.restarted",
    "job.ended",
]
FAILURES: Mapping[Kind, EventType] = {
    "rank": "rank.failed",
    "host": "host.lost",
    "network": "network.lost",
    "launcher": "launcher.failed",
    "start": "start.timeout",
    "placement": "placement.wrong",
    "world": "world.alone",
    "stall": "job.stalled",
    "port": "port.taken",
    "driver": "driver.failed",
    "interrupted": "job.interrupted",
    "stopped": "job.stopped",
    "allocation": "allocation.ended",
}
"""The event of each kind of failure that a verdict can name."""
LONGEST_TEXT = 2000
"""Characters of `text`: a host may have sent it."""


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """An event of a job. A field that does not apply to its type is None."""

    at: float
    """Seconds since the epoch, on the driver's clock."""
    type: EventType
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
    """The time of the last progress before a stall."""

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def of_failure(failure: Failure, plan: LaunchPlan) -> JobEvent:
    """The event of a failure in an attempt."""
    return JobEvent(
        at=failure.at,
        type=FAILURES[failure.kind],
        job=plan.spec.job,
        attempt=plan.spec.attempt,
        host=failure.host,
        rank=failure.rank,
        text=failure.reason[:LONGEST_TEXT],
        exit_status=failure.exit_status,
    )
