"""Looks every few seconds which ranks of a recorded job come late to its collectives.

Nothing here can fail a job. A look is in a thread of its own, and costs a host and the driver no more than a
share of a processor: where it takes long, it comes less often.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from ..common.clock import now
from ..common.samples import HostSample
from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..why.causes import Surroundings, mean_unsent
from ..why.gather import GatheredPace, gather, gather_pace
from ..why.lateness import Pace
from ..why.positions import Rank
from ..why.stragglers import LATELY, Straggler, Summary, stragglers
from .state import State

FIRST_SECONDS, LOOK_SECONDS, POLL_SECONDS = 5.0, 10.0, 0.5
MOST_SHARE, MOST_DRIVER_SHARE = 0.005, 0.02  # of a processor
FEWER = 200
"""After so many looks they become fewer, so that a run of weeks has some thousand."""
LAST_SECONDS = 3.0  # that the end of a job waits for the last look
LOOKS = 8
"""How often the stacks are read when a rank is first found to be late."""
KeepPace = Callable[[float, Pace, list[Straggler]], None]
"""Gets each pace, with its time and the ranks that are late."""


class Pacing:
    """The looks at one attempt. `samples`: the newest of each host."""

    def __init__(
        self, state: State, cluster: Cluster, samples: Mapping[str, HostSample], keep: KeepPace | None
    ) -> None:
        self._state, self._cluster, self._samples, self._keep = state, cluster, samples, keep
        self._pool = ThreadPoolExecutor(1)
        self._look: Future[_Look] | None = None
        self._began = time.monotonic()
        self._unsent: deque[Mapping[str, float]] = deque(maxlen=LATELY)
        self.summary = Summary()

    def begin(self) -> None:
        """Look now and then from now on."""
        self._state.deadlines.after(FIRST_SECONDS, self._start)

    def end(self) -> None:
        """A last look: the last collectives of ranks that are gone can still be read."""
        if self._look is None:
            self._look = self._pool.submit(self._take)
        wait([self._look], LAST_SECONDS)
        if self._look.done() and self._look.exception() is None:
            self._note(self._look.result())

    def _start(self) -> None:
        self._look = self._pool.submit(self._take)
        self._state.deadlines.after(POLL_SECONDS, self._collect)

    def _collect(self) -> None:
        look = self._look
        if look is None or not look.done():
            self._state.deadlines.after(POLL_SECONDS, self._collect)
            return
        self._look = None
        pause = LOOK_SECONDS
        if look.exception() is None:
            self._note(look.result())
            pause = max(pause, look.result().pause, (time.monotonic() - self._began) / FEWER)
        self._state.deadlines.after(pause, self._start)

    def _note(self, look: _Look) -> None:
        if look.gathered.pace:
            self.summary.add(look.late)
            if self._keep:
                self._keep(look.at, look.gathered.pace, look.late)

    def _take(self) -> _Look:
        """A look, in a thread. The stacks are read only while the cause is unknown of a rank that is late."""
        began = time.thread_time()
        job = self._state.plan.spec.job
        channels: Mapping[str, Channel] = dict(self._cluster.channels)
        gathered = gather_pace(job, channels)
        self._unsent.append(gathered.unsent)
        unsent = mean_unsent(list(self._unsent))
        known = Surroundings(gathered.pressures, dict(self._samples), unsent=unsent)
        late = stragglers(gathered.pace, known)
        if any(self.summary.wants_stacks(one.rank) for one in late):
            late = stragglers(gathered.pace, replace(known, looks=self._looks(job, channels)))
        took = time.thread_time() - began
        return _Look(now(), gathered, late, max(gathered.cost / MOST_SHARE, took / MOST_DRIVER_SHARE))

    def _looks(self, job: str, channels: Mapping[str, Channel]) -> list[list[Rank]]:
        looks: list[list[Rank]] = []
        while len(looks) < LOOKS and not self._state.over:
            looks.append(gather(job, channels)[0])
        return looks


@dataclass(frozen=True)
class _Look:
    at: float
    gathered: GatheredPace
    late: list[Straggler]
    pause: float
    """Seconds to the next look at least."""
