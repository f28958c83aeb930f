"""Samples of a running launch: has the agents send them, and hands on those that may be true.

Nothing here can fail a job. A host that sends nonsense, or the same again and again, costs its samples only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..common.clock import now
from ..common.samples import HostSample
from ..connect.cluster import Cluster
from ..connect.reports import Sampled
from ..connect.requests.launch import WATCH
from .state import State

SAMPLE_SECONDS = 2.0
LEAST_SECONDS = 0.5  # between two samples of a host: more come only from a host that floods

Keep = Callable[[HostSample], None]
"""Gets each sample, with its time, host and attempt."""


class Sampling:
    """The samples of one attempt. `every`: seconds between those of a host; 0 asks for none."""

    def __init__(self, state: State, cluster: Cluster, keep: Keep | None, every: float) -> None:
        self._state, self._cluster = state, cluster
        self._keep, self._every = keep, every
        self._last: dict[str, float] = {}

    def begin(self) -> None:
        """Ask every host for samples; nobody waits for the answers."""
        if self._keep and self._every > 0:
            for channel in self._cluster.channels.values():
                channel.post(WATCH, every=self._every)

    def take(self, host: str, report: Sampled) -> None:
        """Hand on a sample with the time, and with those of its ranks that the plan has on that host."""
        at = round(now(), 3)
        if not self._keep or report.sample is None or at - self._last.get(host, 0.0) < LEAST_SECONDS:
            return
        self._last[host] = at
        places = self._state.places
        ranks = {entry.rank: entry for entry in report.sample.ranks}
        planned = (entry for rank, entry in ranks.items() if rank in places and places[rank].host == host)
        attempt = self._state.plan.spec.attempt
        self._keep(
            dataclasses.replace(report.sample, at=at, host=host, attempt=attempt, ranks=tuple(planned))
        )
