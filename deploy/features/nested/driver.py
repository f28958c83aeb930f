"""Notes ranks that start a launcher of ranks: each becomes a job of its own, with all the data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from shlex import quote

from ...core.hosts.host_sample import HostSample
from ...core.job.events import Event, Said
from ...core.job.feature import Attempt, Feature
from ...core.job.result import LaunchResult
from ...core.plan.launch_plan import LaunchPlan
from ...core.text.fold import fold
from ...core.text.terminal import harmless
from ...core.text.text import count, span


class NestedLaunchers(Feature):
    """Says so as soon as two ranks have started one, and in the verdict."""

    def __init__(self) -> None:
        self._started: dict[int, str] = {}
        self._said = ""

    def begins(self, attempt: Attempt) -> None:
        """Of an earlier attempt nothing counts."""
        self._started, self._said = {}, ""

    def on_event(self, event: Event) -> None:
        """Samples name the launchers that ranks have started."""
        if isinstance(event, HostSample):
            self._started |= {rank.rank: rank.launcher for rank in event.ranks if rank.launcher}

    def turn(self, attempt: Attempt) -> None:
        """Say it while it still saves time; hosts send their samples one after the other."""
        if len(self._started) == len(attempt.plan.ranks) and not self._said:
            self._said = nested(self._started, attempt.plan)
            if self._said:
                attempt.emit(Said(f"note: {self._said}"))

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Add it to the notes of the verdict."""
        text = nested(self._started, attempt.plan)
        return dataclasses.replace(result, notes=(*result.notes, text)) if text else result


def nested(started: Mapping[int, str], plan: LaunchPlan) -> str:
    """The note about ranks and the launchers that they have started; empty for fewer than two."""
    if len(started) < 2:
        return ""
    ((ranks, text), *_) = sorted(fold(started.items()), key=lambda group: -len(group[0]))
    *name, program = harmless(text).split(" ") if text.endswith(".py") else (harmless(text), "")
    remedies = [f"launch {quote(program)} itself"] if program else ["launch its program itself"]
    if any(len(host.ranks) > 1 for host in plan.hosts):
        remedies.append("give each host one rank: --slots 1")
    jobs = count(len(started), "separate job")
    return f"{span(ranks)} each started {' '.join(name)}: these are {jobs}, not one; {', or '.join(remedies)}"
