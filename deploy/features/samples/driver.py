"""Samples of the hosts of a running attempt. Nothing here can fail a job.

A host that sends malformed samples, or more than requested, loses only its samples, and the verdict notes it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from ...core.hosts.host_sample import SAMPLES, HostSample
from ...core.job.events import Event, Reported
from ...core.job.feature import Attempt, Feature
from ...core.job.result import LaunchResult
from ...core.text.text import count
from ...core.wire.clock import now
from ...core.wire.os_errors import explain
from .messages import WATCH, Sampled
from .sample_file import SampleFile

SAMPLE_SECONDS = 2.0
LEAST_SECONDS = 0.5  # between two samples of a host: more come only from a host that floods
FLOOD = 100  # samples that came too early: some also come at once after a break of the network


class Sampling(Feature):
    """Asks every host for samples, passes them on as events, and keeps them in `samples.jsonl`."""

    hears = (Sampled,)

    def __init__(self) -> None:
        self._file: SampleFile | None = None

    def begins(self, attempt: Attempt) -> None:
        """No host is asked yet: a host begins to sample after it has started its launcher."""
        self._attempt, self._is_asked = attempt, False
        self._last: dict[str, float] = {}
        self._malformed, self._excess = Counter[str](), Counter[str]()
        if self._file is None:
            self._file = SampleFile(str(attempt.folder.path / SAMPLES), len(attempt.plan.hosts))

    def turn(self, attempt: Attempt) -> None:
        """Ask every host once, and do not wait for the answers."""
        if not self._is_asked:
            self._is_asked = True
            for channel in attempt.cluster.channels.values():
                channel.post(WATCH, every=SAMPLE_SECONDS)

    def on_event(self, event: Event) -> None:
        """Take the report of a host."""
        if isinstance(event, Reported) and isinstance(event.report, Sampled):
            self._take(event.host, event.report)
        elif isinstance(event, HostSample) and self._file:
            self._file.add(event)

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Note the hosts whose samples were dropped."""
        malformed = [
            f"{host}: {count(number, 'malformed sample')} dropped" for host, number in self._malformed.items()
        ]
        excess = [
            f"{host}: {number} samples more than requested; dropped"
            for host, number in self._excess.items()
            if number > FLOOD
        ]
        return dataclasses.replace(result, notes=(*result.notes, *malformed, *excess))

    def over(self, result: LaunchResult) -> LaunchResult:
        """Close the file, and note why it ends early, if it does."""
        if self._file:
            self._file.close()
        if self._file is None or self._file.problem is None:
            return result
        note = f"here: {SAMPLES} ends early: {explain(self._file.problem)}"
        return dataclasses.replace(result, notes=(*result.notes, note))

    def _take(self, host: str, report: Sampled) -> None:
        """Pass a sample on with the time, and with those of its ranks that the plan has on that host."""
        at = round(now(), 3)
        if at - self._last.get(host, 0.0) < LEAST_SECONDS:
            self._excess[host] += 1
            return
        if report.sample is None:
            self._malformed[host] += 1
            return
        self._last[host] = at
        placed, attempt = self._attempt.state.placed, self._attempt.plan.spec.attempt
        ranks = {entry.rank: entry for entry in report.sample.ranks}
        planned = (entry for rank, entry in ranks.items() if rank in placed and placed[rank].host == host)
        self._attempt.emit(
            dataclasses.replace(report.sample, at=at, host=host, attempt=attempt, ranks=tuple(planned))
        )
