"""Asks the hosts of a job when their ranks came to collectives, and what may explain a rank that is late."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..common.samples import HostSample, of_line
from ..connect.arrivals import Arrivals, Pressure
from ..connect.channel import Channel
from ..connect.fanout import on_every
from ..connect.requests.launch import SAMPLE
from ..connect.requests.why import ARRIVALS
from .causes import Surroundings, mean_unsent
from .gather import gather
from .lateness import Pace, pace
from .meetings import Arriving, Clock
from .slow import Straggler, stragglers

ARRIVALS_SECONDS = 10.0
RATES_SECONDS = 1.0
"""Between two readings of what only grows."""
LOOKS = 12
"""How often the stacks are read to see where a late rank is, and the others are not."""


@dataclass(frozen=True)
class Gathered:
    """The pace of a job, and what kept its ranks from running.

    `cost`: seconds of processor time that it took, of the host where it took most.
    """

    pace: Pace | None
    pressures: Mapping[int, Pressure] = field(default_factory=dict)
    unsent: Mapping[str, float] = field(default_factory=dict)
    cost: float = 0.0


@dataclass(frozen=True)
class _Here:
    ranks: Mapping[str, Arrivals]
    clock: Clock
    unsent: float
    cost: float


def gather_pace(job: str, channels: Mapping[str, Channel]) -> Gathered:
    """Ask all hosts at once. A host that gives no answer is left out."""
    asked = on_every(channels, lambda host: _ask(job, channels[host]))
    arriving = [
        Arriving(int(number), host, arrivals)
        for host, here in asked.results.items()
        for number, arrivals in here.ranks.items()
    ]
    arriving.sort(key=lambda rank: rank.number)
    return Gathered(
        pace(arriving, {host: here.clock for host, here in asked.results.items()}),
        {rank.number: rank.arrivals.pressure for rank in arriving if rank.arrivals.pressure},
        {host: here.unsent for host, here in asked.results.items()},
        max((here.cost for here in asked.results.values()), default=0.0),
    )


def _ask(job: str, channel: Channel) -> _Here:
    here = channel.ask(ARRIVALS, job=job, host=channel.host, seconds=ARRIVALS_SECONDS)
    ahead, wrong = channel.measure_clock() if here.ranks else (0.0, 0.0)
    return _Here(here.ranks, Clock(ahead, wrong), here.unsent, here.cost)


def gather_stragglers(job: str, channels: Mapping[str, Channel]) -> list[Straggler]:
    """The ranks that are late twice, with what their hosts, processors and stacks show in the meantime."""
    first = gather_pace(job, channels).pace
    if first is None or not first.late:
        return []
    gather_samples(channels)
    time.sleep(RATES_SECONDS)  # before the looks, which use the processors too
    samples, found = gather_samples(channels), gather_pace(job, channels)
    if found.pace is None or not found.pace.late:
        return []
    looks, unsent = [], [found.unsent]
    for _ in range(LOOKS):
        looks.append(gather(job, channels)[0])
        unsent.append(gather_pace(job, channels).unsent)
    known = Surroundings(found.pressures, samples, looks, mean_unsent(unsent))
    return stragglers(found.pace, known)


def gather_samples(channels: Mapping[str, Channel]) -> dict[str, HostSample]:
    """What each host does, of those that say it."""
    asked = on_every(channels, lambda host: channels[host].ask(SAMPLE).sample)
    samples = {}
    for host, text in asked.results.items():
        with contextlib.suppress(ValueError):
            samples[host] = of_line(text)
    return samples
