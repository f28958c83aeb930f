"""How far the start of an attempt is, with the load of its hosts."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

from ...core.hosts.host_sample import IDLE_SHARE, HostSample
from ...core.job.events import Event, Output, Stage
from ...core.job.feature import Attempt, Feature
from ...core.job.result import LaunchResult
from ...core.job.state import LaunchState
from ...core.text.progress import ELAPSED_SECONDS
from ...core.text.text import count, duration, span

BUSY = 2.0
"""From a load of so many times the processors of a host on, its ranks start late."""
MOST_BUSY = 4


class StartStage:
    """`starting mpirun`, `5 of 6 ranks started`, `6 ranks started, no output for 12 s`; then nothing."""

    def __init__(self, state: LaunchState, samples: Mapping[str, HostSample]) -> None:
        """`samples`: the newest of each host."""
        self._state, self._samples, self._began = state, samples, time.monotonic()
        self.has_printed = False
        """Whether any rank has printed anything."""
        self._all_started = math.inf

    def __call__(self) -> str:
        state, now = self._state, time.monotonic()
        ranks, started, seconds = len(state.placed), len(state.started), now - self._began
        if started == ranks:
            self._all_started = min(self._all_started, now)
            return "" if self.has_printed else self._silence(ranks, now - self._all_started)
        elapsed = f", {duration(int(seconds))}" if seconds >= ELAPSED_SECONDS else ""
        if not started:
            return f"starting {state.plan.spec.launcher}{elapsed}"
        first = next(placed for rank, placed in state.placed.items() if rank not in state.started)
        missing = f" (rank {first.rank} on {first.host}: {state.phases[first.host]})" if elapsed else ""
        return f"{started} of {count(ranks, 'rank')} started{elapsed}{missing}"

    def _silence(self, ranks: int, seconds: float) -> str:
        """`6 ranks started, no output for 12 s; only ranks 0-3 use the CPU`."""
        text = f"{count(ranks, 'rank')} started"
        if seconds < ELAPSED_SECONDS:
            return text
        text = f"{text}, no output for {duration(int(seconds))}"
        cores = {rank.rank: rank.cpu for host in [*self._samples.values()] for rank in host.ranks}
        busy = sorted(rank for rank, used in cores.items() if used and used >= IDLE_SHARE)
        if len(cores) < ranks or None in cores.values():  # not measured yet
            return text
        if len(busy) == ranks:
            return f"{text}; {'it uses' if ranks == 1 else 'all use'} the CPU"
        only = f"only {span(busy)} {'uses' if len(busy) == 1 else 'use'}" if busy else "none uses"
        return f"{text}; {only} the CPU"


class Starting(Feature):
    """Shows how far the start is, and names the busy hosts if it takes too long."""

    def begins(self, attempt: Attempt) -> None:
        """Show it from now on."""
        self._samples: dict[str, HostSample] = {}
        self._stage = StartStage(attempt.state, self._samples)
        attempt.emit(Stage(self._stage))

    def on_event(self, event: Event) -> None:
        """Keep the newest sample of each host."""
        if isinstance(event, HostSample):
            self._samples[event.host] = event
        elif isinstance(event, Output):
            self._stage.has_printed = True

    def explain(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """`; node2 is busy (a load of 35 on 2 processors): --start-timeout SECONDS waits longer`."""
        failure, state = result.failure, attempt.state
        if failure is None or failure.kind != "start":
            return result
        late = {placed.host for rank, placed in state.placed.items() if rank not in state.started}
        busy = [
            f"{name} is busy (a load of {sample.load:.0f} on {count(sample.cpus, 'processor')})"
            for name, sample in self._samples.items()
            if name in late and sample.load and sample.cpus and sample.load >= BUSY * sample.cpus
        ]
        if not busy:
            return result
        reason = f"{failure.reason}; {', '.join(busy[:MOST_BUSY])}: --start-timeout SECONDS waits longer"
        return replace(result, failure=replace(failure, reason=reason))
