"""Samples of the hosts of a running launch, and the pace of its ranks. Nothing here can fail a job.

A host that sends malformed samples, or more than requested, loses only its samples, and the verdict notes it.
Every few seconds a look at a recorded job finds the ranks that come late to its collectives. Looks run in a
separate thread, and may use a small share of a processor of a host and of the driver: long ones are rarer.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from ..common.clock import now
from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.reports import Sampled
from ..connect.requests.launch import WATCH
from ..connect.requests.why import Straggler
from ..console.text import count
from ..hosts.samples import HostSample
from ..why.causes import Surroundings, mean_unsent
from ..why.gather import GatheredPace, gather, gather_pace
from ..why.lateness import Pace
from ..why.positions import Rank
from ..why.stragglers import Summary
from .events import Emit, Paced
from .state import LaunchState
from .watchdogs import StallNotes

SAMPLE_SECONDS = 2.0
LEAST_SECONDS = 0.5  # between two samples of a host: more come only from a host that floods
FLOOD = 100  # samples that came too early: some also come at once after a break of the network


class SampleCollector:
    """The samples of one attempt."""

    def __init__(self, state: LaunchState, cluster: Cluster, emit: Emit) -> None:
        self._state, self._cluster, self._emit = state, cluster, emit
        self._last: dict[str, float] = {}
        self.newest: dict[str, HostSample] = {}
        self._malformed: Counter[str] = Counter()
        self._excess: Counter[str] = Counter()

    @property
    def notes(self) -> list[str]:
        """The verdict's notes about hosts whose samples were dropped."""
        malformed = [
            f"{host}: {count(number, 'malformed sample')} dropped" for host, number in self._malformed.items()
        ]
        return malformed + [
            f"{host}: {number} samples more than requested; dropped"
            for host, number in self._excess.items()
            if number > FLOOD
        ]

    def begin(self) -> None:
        """Ask every host for samples, and do not wait for the answers."""
        for channel in self._cluster.channels.values():
            channel.post(WATCH, every=SAMPLE_SECONDS)

    def take(self, host: str, report: Sampled) -> None:
        """Keep a sample with the time, and with those of its ranks that the plan has on that host."""
        at = round(now(), 3)
        if at - self._last.get(host, 0.0) < LEAST_SECONDS:
            self._excess[host] += 1
            return
        if report.sample is None:
            self._malformed[host] += 1
            return
        self._last[host] = at
        placed = self._state.placed
        ranks = {entry.rank: entry for entry in report.sample.ranks}
        planned = (entry for rank, entry in ranks.items() if rank in placed and placed[rank].host == host)
        attempt = self._state.plan.spec.attempt
        sample = dataclasses.replace(report.sample, at=at, host=host, attempt=attempt, ranks=tuple(planned))
        self.newest[host] = sample
        self._emit(sample)


FIRST_SECONDS, LOOK_SECONDS, POLL_SECONDS = 5.0, 10.0, 0.5
MOST_SHARE, MOST_DRIVER_SHARE = 0.005, 0.02  # of a processor
FEWER = 200
"""After so many looks they become fewer, so that a run of weeks has some thousand."""
UNSENT_LOOKS = 5
"""The looks whose unsent data is averaged."""
LAST_SECONDS = 3.0  # that the end of a job waits for the last look
LOOKS = 8
"""The number of readings of the stacks when a rank is late for the first time."""
OnSetUp = Callable[[Mapping[int, tuple[float, float]]], None]
"""Gets, once, when each rank began and ended to make its process group."""


class PaceWatch:
    """The looks at one attempt. `samples`: the newest of each host."""

    def __init__(
        self,
        state: LaunchState,
        cluster: Cluster,
        samples: Mapping[str, HostSample],
        stalls: StallNotes,
        emit: Emit,
        *,
        on_set_up: OnSetUp,
    ) -> None:
        self._state, self._cluster, self._samples, self._emit = state, cluster, samples, emit
        self._stalls, self._on_set_up, self._is_set_up = stalls, on_set_up, False
        self._pool = ThreadPoolExecutor(1)
        self._look: Future[_Look] | None = None
        self._began = time.monotonic()
        self._unsent: deque[Mapping[str, float]] = deque(maxlen=UNSENT_LOOKS)
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
            fewer = 0.0 if self._stalls.stalled else (time.monotonic() - self._began) / FEWER
            pause = max(pause, look.result().pause, fewer)
        self._state.deadlines.after(pause, self._start)

    def _note(self, look: _Look) -> None:
        self._stalls.begun(look.gathered.begun)
        if not self._is_set_up and look.gathered.set_up.keys() >= self._state.placed.keys():
            self._is_set_up = True
            self._on_set_up(look.gathered.set_up)
        if look.pace:
            self._emit(Paced(look.at, look.pace, look.late))

    def _take(self) -> _Look:
        """A look, in a thread. It reads stacks only for a late rank whose cause is unknown."""
        began = time.thread_time()
        job = self._state.plan.spec.job
        channels: Mapping[str, Channel] = dict(self._cluster.channels)
        gathered = gather_pace(job, channels)
        self._unsent.append(gathered.unsent)
        unsent = mean_unsent(list(self._unsent))
        surroundings = Surroundings(gathered.pressures, dict(self._samples), unsent=unsent)
        pace = self.summary.add(gathered.paces, surroundings)
        if self.summary.needs_stacks:
            self.summary.explain(pace, replace(surroundings, looks=self._looks(job, channels)))
        took = time.thread_time() - began
        pause = max(gathered.cost / MOST_SHARE, took / MOST_DRIVER_SHARE)
        return _Look(now(), gathered, pace, list(self.summary.late), pause)

    def _looks(self, job: str, channels: Mapping[str, Channel]) -> list[list[Rank]]:
        looks: list[list[Rank]] = []
        while len(looks) < LOOKS and not self._state.over:
            looks.append(gather(job, channels)[0])
        return looks


@dataclass(frozen=True)
class _Look:
    at: float
    gathered: GatheredPace
    pace: Pace | None
    late: list[Straggler]
    pause: float
    """Seconds to the next look at least."""
