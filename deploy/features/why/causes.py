"""Why a rank is late: what its processor, host and stacks show, unlike those of the other ranks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from ...core.hosts.host_sample import HOT_CPU, HOT_GPU, GpuSample, HostSample
from ...core.text.terminal import harmless
from ...core.text.text import percent
from .descriptions import SAVES, doing, own_line
from .lateness import RankPace
from .messages import Evidence, Pressure
from .positions import Rank
from .stall import IDLE_GPU

THROTTLED, QUEUED = 0.2, 0.15
"""From these shares of the time on, a quota or other threads explain a lateness."""
UNSENT = 0.4
"""From this share of the time on, data that waits to be sent explains a lateness."""
MORE = 2.0
"""A share explains a lateness only if it is at least this many times that of the others."""
OTHERS_CORES = 0.5
SLOW_CLOCK = 0.85
OFTEN = 0.25
"""A line explains a rank that is in it in this much more of the looks than the other ranks."""
_WAITS = ("torch/distributed", "mpi_backend")


@dataclass(frozen=True)
class Surroundings:
    """Measurements of ranks and hosts in addition to the times of arrival.

    `looks`: what all ranks did at some moments, each with its stack. `unsent`: the share of the time in which
    data waited on a host to be sent.
    """

    pressures: Mapping[int, Pressure]
    samples: Mapping[str, HostSample]
    looks: Sequence[Sequence[Rank]] = ()
    unsent: Mapping[str, float] = field(default_factory=dict)


def likely_cause(rank: RankPace, late: set[int], surroundings: Surroundings) -> str:
    """The measurement that explains the lateness of a rank and differs from the others; empty if none does.

    `late`: the ranks that are late, which are not compared with each other.
    """
    location = usual_location(surroundings.looks, rank.rank, late)
    if SAVES in location:  # the rank that saves has more to do than the others
        return f"it {location}"
    cause = (
        _kept_from_running(rank, late, surroundings)
        or _heat(rank, surroundings.samples)
        or slow_link(rank.host, surroundings.unsent)
    )
    return "; ".join(filter(None, (cause, f"it {location}" if location else "")))


def _kept_from_running(rank: RankPace, late: set[int], surroundings: Surroundings) -> str:
    mine = surroundings.pressures.get(rank.rank)
    if mine is None:
        return ""
    others = [pressure for other, pressure in surroundings.pressures.items() if other not in late]
    if _exceeds(mine.throttled, [other.throttled for other in others], THROTTLED):
        return f"its CPU quota, which is used up in {percent(mine.throttled or 0.0)} of its periods"
    if _exceeds(mine.queued, [other.queued for other in others], QUEUED):
        waits = percent(mine.queued or 0.0)
        return f"it waits for a processor {waits} of the time, {_neighbours(rank.host, surroundings)}"
    return ""


def _exceeds(mine: float | None, others: Sequence[float | None], least: float) -> bool:
    usual = median([other or 0.0 for other in others]) if others else 0.0
    return mine is not None and mine >= least and mine >= MORE * usual


def _neighbours(host: str, surroundings: Surroundings) -> str:
    """Which work occupies the processors of a host: that of its own ranks, or other work."""
    sample = surroundings.samples.get(host)
    if sample is None or sample.cpu is None or not sample.cpus:
        return f"other work on {harmless(host)} has them"
    mine = sum(entry.cpu or 0.0 for entry in sample.ranks)
    others = max(0.0, sample.cpu * sample.cpus - mine)
    if sample.ranks and others < OTHERS_CORES:
        return f"the ranks of {harmless(host)} have more threads than it has processors"
    shown = f" ({others:.1f} of {sample.cpus})" if sample.ranks else ""
    return f"other work on {harmless(host)} has them{shown}"


def _heat(rank: RankPace, samples: Mapping[str, HostSample]) -> str:
    sample = samples.get(rank.host)
    if sample is None:
        return ""
    clocks = [gpu.clock for other in samples.values() for gpu in other.gpus if _computes(gpu) and gpu.clock]
    for gpu in _gpus_of(rank.rank, sample):
        slow = _computes(gpu) and gpu.clock is not None and clocks and gpu.clock < SLOW_CLOCK * median(clocks)
        if slow or (gpu.temperature or 0.0) >= HOT_GPU:
            at = f", at {gpu.clock:.0f} MHz" if gpu.clock is not None else ""
            return f"GPU {gpu.index} of {harmless(rank.host)} is slow: {gpu.temperature or 0:.0f} °C{at}"
    hot = sample.temperature or 0.0
    return f"{harmless(rank.host)} is hot: {hot:.0f} °C" if hot >= HOT_CPU else ""


def _computes(gpu: GpuSample) -> bool:
    """Whether a GPU computes, as far as that is known: an idle one lowers its clock."""
    return gpu.utilisation is None or gpu.utilisation >= IDLE_GPU


def _gpus_of(rank: int, sample: HostSample) -> Sequence[GpuSample]:
    """The GPUs that a rank uses; all of its host if they are unknown."""
    used = next((entry.gpus for entry in sample.ranks if entry.rank == rank), None)
    return sample.gpus if used is None else [gpu for gpu in sample.gpus if gpu.index in used]


def slow_link(host: str, unsent: Mapping[str, float]) -> str:
    """The host with a slow outgoing link, if data waits there to be sent and hardly on the others.

    In a ring, the rank that is late is then the next one, because its data arrives last.
    """
    slowest = max(unsent, key=lambda name: unsent[name], default="")
    others = [share for name, share in unsent.items() if name != slowest]
    if not others or not _exceeds(unsent[slowest], others, UNSENT):
        return ""
    waits = f"data waits there to be sent {percent(unsent[slowest])} of the time"
    to = "" if slowest == host else f", perhaps to {harmless(host)}"
    return f"the link out of {harmless(slowest)}{to}: {waits}"


def mean_unsent(readings: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of several readings, of each host that is in all of them."""
    hosts = set(readings[0]).intersection(*readings[1:]) if readings else set()
    return {host: sum(reading[host] for reading in readings) / len(readings) for host in sorted(hosts)}


def usual_location(looks: Sequence[Sequence[Rank]], rank: int, late: set[int]) -> str:
    """The line of a rank in many more looks than of the ranks that are not late; empty if there is none."""
    mine, others = Counter[str](), Counter[str]()
    descriptions: dict[str, str] = {}
    counts = [0, 0]
    for look in looks:
        for seen in look:
            if seen.evidence is None or not seen.evidence.frames or (seen.number in late - {rank}):
                continue
            counter, which = (mine, 0) if seen.number == rank else (others, 1)
            counts[which] += 1
            line = own_line(seen.evidence.frames)
            if line is None or waits(seen.evidence):
                continue
            place = "" if line.function.startswith("`") else line.function  # a line outside any function
            key = f"{line.file}:{place}"
            counter[key] += 1
            if which == 0:
                descriptions[key] = doing(seen.evidence)
    more = {key: mine[key] / counts[0] - others[key] / max(1, counts[1]) for key in mine}
    best = max(more, key=lambda key: more[key], default="")
    return descriptions[best] if best and more[best] >= OFTEN else ""


def waits(evidence: Evidence) -> bool:
    """Whether a rank is in a collective, by the frames that the user's line has called.

    The frames below that line do not count: torch's `@record` is below every line of a program.
    """
    at = own_line(evidence.frames)
    inside = evidence.frames[: evidence.frames.index(at) + 1] if at else evidence.frames
    return any(sign in line.file for line in inside for sign in _WAITS)
