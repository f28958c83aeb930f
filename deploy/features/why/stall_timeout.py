"""Ends a job that stalls (`--stall-timeout`).

It stalls if a rank is stopped (SIGSTOP) or stuck in the kernel (a file system that does not answer) for that
long, or if no rank prints and none uses its processor or a GPU. A rank that computes in silence is at work. A
rank that polls while it waits, as under MPI and CUDA, looks busy; so does one in an endless loop. In a job
whose collectives are recorded, stall_notes.py finds these, and a stall that it has noted counts too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from ...core.hosts.host_sample import IDLE_SHARE, HostSample
from ...core.job.events import Event, JobEvent, printed_by_program
from ...core.job.feature import Attempt, Feature
from ...core.job.result import Failure
from ...core.text.text import stall_text
from ...core.wire.clock import now
from .options import WhyOptions
from .stall import gpus_compute

_NAMES = {"T": "stopped (SIGSTOP)", "D": "stuck in the kernel (state D: a disk or network file system?)"}


@dataclass
class _Seen:
    """What the samples of a rank show. The times are of the driver's monotonic clock."""

    active: float
    state: str | None = None
    since: float = 0.0


class StallTimeout(Feature):
    """Detects stalls from the samples and the output of the ranks."""

    def begins(self, attempt: Attempt) -> None:
        """An attempt stalls on its own."""
        self._attempt, self._state = attempt, attempt.state
        self._seconds = attempt.plan.spec.of(WhyOptions).stall_timeout
        self._seen: dict[int, _Seen] = {}
        self._printed = time.monotonic()
        self._noted: JobEvent | None = None
        """The note of a stall that has not ended."""

    def on_event(self, event: Event) -> None:
        """Output is a sign of life, and a sample may be one."""
        if printed_by_program(event):
            self._printed = time.monotonic()
        elif isinstance(event, JobEvent) and event.since is not None:
            self._noted = event if event.type == "steps.stopped" else None
        elif isinstance(event, HostSample):
            self._take(event, time.monotonic())
            self._judge(time.monotonic())

    def _take(self, sample: HostSample, at: float) -> None:
        """A rank is active if it uses its processor, or while a GPU that its processes use computes."""
        for entry in sample.ranks:
            seen = self._seen.setdefault(entry.rank, _Seen(active=at))
            computes = bool(entry.gpus) and gpus_compute(entry, sample, 0)
            if entry.cpu is None or entry.cpu >= IDLE_SHARE or computes:
                seen.active = at
            if entry.state != seen.state:
                seen.state, seen.since = entry.state, at

    def _judge(self, at: float) -> None:
        state = self._state
        if not state.all_started or state.failures:
            return
        running = {rank: seen for rank, seen in self._seen.items() if rank not in state.ends}
        for kind, name in _NAMES.items():
            stuck = {rank for rank, seen in running.items() if seen.state == kind}
            if odd := sorted(rank for rank in stuck if at - running[rank].since > self._seconds):
                self._fail(f"{name} for {self._seconds:.0f} s", odd)
                return
        active = max([self._printed, *(seen.active for seen in running.values())])
        if running and at - active > self._seconds:
            nothing = f"no rank has printed anything or used its processor for {self._seconds:.0f} s"
            for kind, name in _NAMES.items():
                if odd := sorted(rank for rank, seen in running.items() if seen.state == kind):
                    self._fail(f"{name}, and {nothing}", odd)
                    return
            if odd := sorted(rank for rank in running if rank in state.ended_but_alive):
                self._fail(f"{state.ended_but_alive[odd[0]].reason}, and {nothing}", odd)
                return
            self._fail(nothing, [])
        elif self._noted and now() - (self._noted.since or now()) > self._seconds:
            self._fail(stall_text(now() - (self._noted.since or now()), self._noted.text), [])

    def _fail(self, reason: str, odd: list[int]) -> None:
        if len(odd) > 1:
            reason = f"{self._state.name(odd)}: {reason}"
        placed = self._state.placed[odd[0]] if len(odd) == 1 else None
        host, rank = (placed.host, placed.rank) if placed else (None, None)
        self._attempt.fail(Failure("stall", reason, 3, host, rank, now(), event="job.stalled", waits=True))
