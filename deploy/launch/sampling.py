"""Samples of a running launch: has the agents send them, and hands on those that may be true.

Nothing here can fail a job. A host that sends malformed samples, or more than requested, loses its samples
only, and the verdict notes it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable

from ..common.clock import now
from ..common.samples import HostSample
from ..connect.cluster import Cluster
from ..connect.reports import Sampled
from ..connect.requests.launch import WATCH
from ..console.text import count
from .state import State

SAMPLE_SECONDS = 2.0
LEAST_SECONDS = 0.5  # between two samples of a host: more come only from a host that floods
FLOOD = 100  # samples that came too early: some also come at once after a break of the network

Keep = Callable[[HostSample], None]
"""Gets each sample, with its time, host and attempt."""


class Sampling:
    """The samples of one attempt. `every`: seconds between those of a host; 0 asks for none."""

    def __init__(self, state: State, cluster: Cluster, keep: Keep | None, every: float) -> None:
        self._state, self._cluster = state, cluster
        self._keep, self._every = keep, every
        self._last: dict[str, float] = {}
        self.newest: dict[str, HostSample] = {}
        self._malformed: Counter[str] = Counter()
        self._early: Counter[str] = Counter()

    @property
    def notes(self) -> list[str]:
        """What the verdict says of hosts whose samples were left out."""
        senseless = [
            f"{host}: {count(number, 'sample')} made no sense, and {'is' if number == 1 else 'are'} left out"
            for host, number in self._malformed.items()
        ]
        return senseless + [
            f"{host}: sent {number} samples more than it was asked for; they are left out"
            for host, number in self._early.items()
            if number > FLOOD
        ]

    def begin(self) -> None:
        """Ask every host for samples; nobody waits for the answers."""
        if self._keep and self._every > 0:
            for channel in self._cluster.channels.values():
                channel.post(WATCH, every=self._every)

    def take(self, host: str, report: Sampled) -> None:
        """Hand on a sample with the time, and with those of its ranks that the plan has on that host."""
        at = round(now(), 3)
        if not self._keep:
            return
        if at - self._last.get(host, 0.0) < LEAST_SECONDS:
            self._early[host] += 1
            return
        if report.sample is None:
            self._malformed[host] += 1
            return
        self._last[host] = at
        places = self._state.places
        ranks = {entry.rank: entry for entry in report.sample.ranks}
        planned = (entry for rank, entry in ranks.items() if rank in places and places[rank].host == host)
        attempt = self._state.plan.spec.attempt
        sample = dataclasses.replace(report.sample, at=at, host=host, attempt=attempt, ranks=tuple(planned))
        self.newest[host] = sample
        self._keep(sample)
