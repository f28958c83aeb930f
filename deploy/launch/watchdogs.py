"""Watches over a launch: stalls (`--stall-timeout`), and the start.

Two things are a stall when they last that long: a rank that is stopped (SIGSTOP) or stuck in the kernel (a
file system that does not answer), and a job in which no rank prints and none uses its processor. A rank that
computes in silence is not stalled. A rank that polls while it waits, as under MPI and CUDA, looks busy.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import groupby

from ..common.clock import now
from ..connect.reports import Pulses
from ..console.text import span
from .result import Failure
from .state import LaunchState

# Helper threads wake up now and then, so a rank that uses less than a twentieth of a core is idle.
IDLE_SHARE = 0.05
_NAMES = {"T": "stopped (SIGSTOP)", "D": "stuck in the kernel (state D: a disk or network file system?)"}


@dataclass
class _Seen:
    """The last pulses of a rank. The times are of the driver's monotonic clock."""

    cpu: float
    at: float
    active: float
    state: str = ""
    since: float = 0.0


class StallWatchdog:
    """Detects stalls from the pulses and the output of the ranks."""

    def __init__(self, state: LaunchState, seconds: float) -> None:
        self.seconds = seconds
        self._state = state
        self._seen: dict[int, _Seen] = {}
        self._printed = time.monotonic()

    def printed(self) -> None:
        """Note that a rank printed something."""
        self._printed = time.monotonic()

    def pulse(self, host: str, report: Pulses) -> None:
        """Handle a host's report of the processor time and state of its ranks."""
        now = time.monotonic()
        for name, pulse in report.ranks.items():
            rank, cpu, state = int(name), pulse.cpu, pulse.state
            self._state.require_own(host, rank)
            seen = self._seen.setdefault(rank, _Seen(cpu, now, active=now))
            if cpu - seen.cpu > IDLE_SHARE * (now - seen.at):
                seen.active = now
            if state != seen.state:
                seen.state, seen.since = state, now
            seen.cpu, seen.at = cpu, now
        self._judge(now)

    def _judge(self, now: float) -> None:
        state = self._state
        if not state.all_started or state.failures:
            return
        running = {rank: seen for rank, seen in self._seen.items() if rank not in state.ends}
        for kind, name in _NAMES.items():
            stuck = {rank for rank, seen in running.items() if seen.state == kind}
            if odd := sorted(rank for rank in stuck if now - running[rank].since > self.seconds):
                self._fail(f"{name} for {self.seconds:.0f} s", odd)
                return
        active = max([self._printed, *(seen.active for seen in running.values())])
        if running and now - active > self.seconds:
            nothing = f"no rank has printed anything or used its processor for {self.seconds:.0f} s"
            for kind, name in _NAMES.items():
                if odd := sorted(rank for rank, seen in running.items() if seen.state == kind):
                    self._fail(f"{name}, and {nothing}", odd)
                    return
            if odd := sorted(rank for rank in running if rank in state.lingering):
                self._fail(f"{state.lingering[odd[0]].reason}, and {nothing}", odd)
                return
            self._fail(nothing, [])

    def _fail(self, reason: str, odd: list[int]) -> None:
        if len(odd) > 1:
            reason = f"{self._state.name(odd)}: {reason}"
        placed = self._state.placed[odd[0]] if len(odd) == 1 else None
        host, rank = (placed.host, placed.rank) if placed else (None, None)
        self._state.fail(Failure("stall", reason, 3, host=host, rank=rank, at=now()))


class StartWatchdog:
    """Fails a launch whose ranks have not all started after a time."""

    def __init__(self, state: LaunchState, seconds: float) -> None:
        self._state, self._seconds = state, seconds
        state.deadlines.after(seconds, self._judge)

    def _judge(self) -> None:
        state = self._state
        if state.all_started or state.failures:
            return
        reason = f"{self._missing()} had not started after {self._seconds:.0f} s"
        state.fail(Failure("start", reason, 3, at=now(), tail=tuple(state.launcher_tail)))

    def _missing(self) -> str:
        """`rank 1 (node1: mpirun started), ranks 2-3 (node2: daemon asked for)`."""
        state = self._state
        unstarted = [placed for rank, placed in state.placed.items() if rank not in state.started]
        return ", ".join(
            f"{span([placed.rank for placed in ranks])} ({host}: {state.phases[host]})"
            for host, ranks in groupby(unstarted, lambda placed: placed.host)
        )
