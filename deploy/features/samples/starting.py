"""How far the start of an attempt is, with the load of its hosts."""

from __future__ import annotations

from dataclasses import replace

from ...core.job.events import Event, Stage
from ...core.job.feature import Attempt, Feature
from ...core.job.result import LaunchResult
from ...core.job.stages import StartStage
from ...core.text.text import count
from .messages import HostSample

BUSY = 2.0
"""From a load of so many times the processors of a host on, its ranks start late."""
MOST_BUSY = 4


class Starting(Feature):
    """Shows how far the start is, and names the busy hosts if it takes too long."""

    def begins(self, attempt: Attempt) -> None:
        """Show it from now on."""
        self._samples: dict[str, HostSample] = {}
        attempt.emit(Stage(StartStage(attempt.state, self._samples)))

    def on_event(self, event: Event) -> None:
        """Keep the newest sample of each host."""
        if isinstance(event, HostSample):
            self._samples[event.host] = event

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
