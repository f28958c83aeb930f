"""Watches an attempt: its events in the order of their arrival, and its first lines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ..plan.launch_plan import LaunchPlan
from ..timings import Timings
from ..wire.clock import now
from .events import Output
from .job_events import LONGEST_TEXT, EventType, JobEvent, of_failure
from .result import LaunchResult


class FirstLines:
    """Notes when the first rank and when the last rank printed its first line."""

    def __init__(self, timings: Timings, ranks: int) -> None:
        self._timings, self._missing, self._began = timings, {*range(ranks)}, timings.now()
        self._ranks = ranks

    def output(self, event: Output) -> None:
        """Note the first line of a rank."""
        if event.rank in self._missing:
            self._missing.discard(event.rank)
            if len(self._missing) == self._ranks - 1:
                self._timings.note("first rank's first line", self._began)
            if not self._missing:
                self._timings.note("last rank's first line", self._began)


MOST_FAILURES = 64
"""Failures of an attempt that become events. Only the first counts, and a host may send any number."""


class JobHistory:
    """Completes the events of a job and passes them on."""

    def __init__(self, job: str, pass_on: Callable[[JobEvent], None]) -> None:
        self._job, self._pass_on = job, pass_on
        self._attempt, self._over = 0, False
        self._printed: dict[int, float] = {}
        self._running: dict[int, str] = {}
        self._failures: set[tuple[EventType, str | None, int | None]] = set()

    def began(self, plan: LaunchPlan) -> None:
        """An attempt begins."""
        self._attempt = plan.spec.attempt
        self._printed, self._running, self._failures = {}, {}, set()
        names = tuple(host.host.name for host in plan.hosts)
        self._pass_on(self._event("attempt.started", hosts=names, ranks=len(plan.ranks), text=plan.title))

    def add(self, event: JobEvent) -> None:
        """An event of the loop."""
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
        """The job starts again on these hosts."""
        self._pass_on(self._event("job.restarted", text=message[:LONGEST_TEXT], hosts=tuple(hosts)))

    def verdict(self, result: LaunchResult) -> None:
        """The job is over; emitted once, even if an interrupt makes the driver end it again."""
        if not self._over:
            self._over = True
            self._end("job.ended", result)

    def _end(self, kind: EventType, result: LaunchResult) -> None:
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

    def _event(self, kind: EventType, **fields: Any) -> JobEvent:
        return dataclasses.replace(
            JobEvent(at=now(), type=kind, job=self._job, attempt=self._attempt), **fields
        )
