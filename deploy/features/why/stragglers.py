"""Which ranks slow the others down, in one look and over a whole run, and the likely cause. Pure.

For each rank a stake is bet on the score of each step (lateness.py): it is multiplied by 1 + SHARE * score.
If a rank is like the others, its expected score is at most 0, whatever the steps are like, so its stake does
not grow on average, and it ever exceeds 1 / FALSE_ALARMS with a probability of at most FALSE_ALARMS (Ville's
inequality). So a rank is late if its stake reaches the number of all ranks divided by FALSE_ALARMS: in a run
of ranks that are alike, no rank is ever named, with a probability of at least 1 - FALSE_ALARMS.

A rank may become slow at any time. So the stake is divided over all possible beginnings: of the n-th step,
1 / (n * (n + 1)).
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from ...core.hosts.host_sample import HOT_CPU, HOT_GPU, GpuSample, HostSample
from ...core.text.fold import fold
from ...core.text.terminal import harmless
from ...core.text.text import duration, percent, size
from .descriptions import SAVES, doing, named, own_line
from .lateness import STEPS, Pace, RankPace, Step
from .messages import CallSite, Evidence, Pressure, Straggler
from .positions import Rank
from .stall import IDLE_GPU

FALSE_ALARMS = 0.001
SHARES = (0.1, 0.25, 0.5, 0.95)
"""Small shares win on small scores, large ones soon: each has a quarter of the stake."""


@dataclass
class _Rank:
    """A rank in the steps of a group. `late`: it was named, and is still later than most."""

    stakes: list[float] = field(default_factory=lambda: [0.0] * len(SHARES))
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS))
    run: float = 0.0
    """How much the scores since `since` favour that it is late."""
    since: float = 0.0
    steps: int = 0
    excess: float = 0.0
    late: bool = False
    late_steps: int = 0

    def add(self, step: Step, index: int, beginning: float, bound: float) -> None:
        """Bet on a step. `beginning`: the part of the stake for this step; `bound`: a stake that is proof."""
        score = step.scores[index]
        self.recent.append(score)
        self._extend(step, index, score)
        most = bound * len(SHARES)  # more proves nothing, and would keep a rank named that has recovered
        self.stakes = [
            min(most, (stake + beginning) * (1 + share * score))
            for share, stake in zip(SHARES, self.stakes, strict=True)
        ]
        if sum(self.recent) <= 0:
            self.late, self.stakes = False, [0.0] * len(SHARES) if self.late else self.stakes
        elif sum(self.stakes) / len(SHARES) >= bound:
            self.late = True
        self.late_steps += self.late

    def _extend(self, step: Step, index: int, score: float) -> None:
        """Since when the rank is late: the scores before do not favour that."""
        if self.run <= 0:
            self.run, self.since, self.steps, self.excess = 0.0, step.at, 0, 0.0
        self.run += math.log1p(0.5 * score)
        self.steps += 1
        self.excess += step.excess[index]


class LateScores:
    """The sums of all groups of a job, from one look after the other."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, bool], _Group] = {}

    def add(self, measured: Sequence[Pace]) -> list[Pace]:
        """Add the steps that are new; returns the paces with the ranks that are late."""
        for look in measured:
            self._groups.setdefault(_key(look), _Group()).size = len(look.ranks)
        bound = sum(group.size for group in self._groups.values()) / FALSE_ALARMS
        return [self._groups[_key(look)].add(look, bound) for look in measured]


def _key(look: Pace) -> tuple[str, bool]:
    return look.group, look.per_step > 1 and not look.regular


class _Group:
    """The sums of the ranks of a group."""

    def __init__(self) -> None:
        self.size = 0
        self._ranks: dict[int, _Rank] = {}
        self._steps = self._last = 0

    def add(self, look: Pace, bound: float) -> Pace:
        """Add the steps that are new; returns the pace with the ranks that are late."""
        if look.latest[-1].last < self._last:  # a new group of the same name
            self._last = 0
        for step in look.latest:
            if step.first <= self._last:
                continue
            self._last = step.last
            self._steps += 1
            beginning = 1 / (self._steps * (self._steps + 1))
            for index, rank in enumerate(look.ranks):
                self._ranks.setdefault(rank.rank, _Rank()).add(step, index, beginning, bound)
        return replace(look, ranks=tuple(self._judged(rank) for rank in look.ranks))

    def _judged(self, rank: RankPace) -> RankPace:
        """The pace of a rank, which is late if it is now, or was in most steps."""
        sums = self._ranks.get(rank.rank)
        if sums is None or not (sums.late or 2 * sums.late_steps > self._steps):
            return rank
        late = max(0.0, sums.excess / sums.steps)
        return replace(rank, is_late=True, since=sums.since, late=late)


def latest(measured: Sequence[Pace]) -> Pace | None:
    """The pace with the latest rank, or with most ranks; rather by the steps of the program than by parts."""
    return max(measured, key=_weight, default=None)


def _weight(measured: Pace) -> tuple[bool, bool, float, int, int]:
    late = max((rank.late for rank in measured.late), default=0.0)
    share = late / (measured.step_seconds or 1.0)
    return bool(measured.late), measured.regular, share, len(measured.ranks), measured.steps


THROTTLED, QUEUED = 0.2, 0.15
"""From these shares of the time on, a quota or other threads explain a lateness."""
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

    `looks`: what all ranks did at some moments, each with its stack.
    """

    pressures: Mapping[int, Pressure]
    samples: Mapping[str, HostSample]
    looks: Sequence[Sequence[Rank]] = ()


def likely_cause(rank: RankPace, late: set[int], surroundings: Surroundings) -> str:
    """The measurement that explains the lateness of a rank and differs from the others; empty if none does.

    `late`: the ranks that are late, which are not compared with each other.
    """
    location = usual_location(surroundings.looks, rank.rank, late)
    if SAVES in location:  # the rank that saves has more to do than the others
        return f"it {location}"
    cause = _kept_from_running(rank, late, surroundings) or _heat(rank, surroundings.samples)
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


def stragglers(pace: Pace | None, surroundings: Surroundings) -> list[Straggler]:
    """The ranks that are late, the latest first, each with the likely cause."""
    if pace is None:
        return []
    late = {rank.rank for rank in pace.late}
    return [
        Straggler(
            rank=rank.rank,
            host=rank.host,
            late=round(rank.late, 6),
            step_seconds=round(pace.step_seconds, 6),
            often=round(rank.often, 3),
            steps=pace.steps,
            regular=pace.regular,
            to=_site(rank.site, pace.group) if rank.site else "",
            since=round(rank.since, 3),
            cause=likely_cause(rank, late, surroundings),
        )
        for rank in pace.late
    ]


def lines(ranks: Sequence[Straggler], now: float, *, ended: bool = False) -> list[str]:
    """The lines about stragglers, those of one host with the same cause together.

    `now`: a time by the driver's clock; `ended`: the job ended then.
    """
    alike = fold((rank, (rank.host, rank.cause, rank.to)) for rank in ranks)
    return [line for same, _ in alike for line in _lines(same, now, ended=ended)]


def _lines(ranks: Sequence[Straggler], now: float, *, ended: bool) -> list[str]:
    first = max(ranks, key=lambda rank: rank.late)
    who = named([Rank(rank.rank, rank.host, None) for rank in ranks])
    who += f" on {harmless(first.host)}" if len(ranks) > 1 else ""
    step = f"a step of {duration(first.step_seconds)}"
    when = f"in {round(first.often * first.steps)} of the last {first.steps} steps"
    if not first.regular:
        step, when = f"every {duration(first.step_seconds)}", "again and again"
    are = ("was" if ended else "is") if len(ranks) == 1 else ("were" if ended else "are")
    wait = f"the others {'waited' if ended else 'wait'} {duration(first.late)} of {step}"
    since = f"for at least {duration(max(0.0, now - min(rank.since for rank in ranks)))}"
    late = f"{who} {are} late: {wait}, {when}, in {first.to}, {since}"
    return [late, f"likely cause: {first.cause}"] if first.cause else [late]


def _site(site: CallSite, group: str) -> str:
    details = [size(site.bytes)] if site.bytes else []
    details += [harmless(site.where)] if site.where else []
    shown = f" ({', '.join(details)})" if details else ""
    return f"{harmless(site.op)} of group {harmless(group)}{shown}"


STACKS = 3
"""The looks at a late rank in which its stacks are read for the cause."""


class Summary:
    """The stragglers of a run so far, by the sums of all looks."""

    def __init__(self) -> None:
        self._sums = LateScores()
        self._causes: dict[int, str] = {}
        self._causes_by_stacks: dict[int, str] = {}
        """These stay: a rank that does more than the others also needs its processor for longer."""
        self._searched: Counter[int] = Counter()
        self.late: list[Straggler] = []
        """The latest first, each with the cause that was found last."""

    def add(self, paces: Sequence[Pace], surroundings: Surroundings) -> Pace | None:
        """Add a look; returns the pace of the latest group. A look without any pace changes nothing."""
        if not paces:
            return None
        pace = latest(self._sums.add(paces))
        self._keep(pace, surroundings)
        return pace

    @property
    def needs_stacks(self) -> bool:
        """Whether the stacks may still show why a rank is late: once, and again while that is unknown."""
        return any(self._searched[rank.rank] < (1 if rank.cause else STACKS) for rank in self.late)

    def explain(self, pace: Pace | None, surroundings: Surroundings) -> None:
        """Find the causes in surroundings that have stacks."""
        self._searched.update(rank.rank for rank in self.late)
        self._keep(pace, surroundings)

    def _keep(self, pace: Pace | None, surroundings: Surroundings) -> None:
        found = stragglers(pace, surroundings)
        causes = {rank.rank: rank.cause for rank in found if rank.cause}
        if surroundings.looks:
            self._causes_by_stacks.update(causes)
        self._causes = {**self._causes, **causes, **self._causes_by_stacks}
        self.late = [replace(rank, cause=self._causes.get(rank.rank, "")) for rank in found]


# -- the lines of pace.jsonl --

PACE = "pace.jsonl"
MOST_RANKS = 256
"""Of more ranks, a line of the pace has those that work longest on a step."""


def pace_line(at: float, attempt: int, pace: Pace, late: Sequence[Straggler]) -> str:
    """The pace of a running attempt as a line, with its newline. Times in seconds."""
    ranks = sorted(sorted(pace.ranks, key=lambda rank: -rank.own)[:MOST_RANKS], key=lambda rank: rank.rank)
    record = {
        "at": round(at, 3),
        "attempt": attempt,
        "group": pace.group,
        "steps": pace.steps,
        "step_seconds": round(pace.step_seconds, 6),
        "regular": pace.regular,
        "ranks": [
            {
                "rank": rank.rank,
                "host": rank.host,
                "own_seconds": round(rank.own, 6),
                "late_seconds": round(rank.late, 6),
                "late": rank.is_late,
            }
            for rank in ranks
        ],
        "late": [straggler.as_json() for straggler in late],
        "slow": lines(late, at),
    }
    return json.dumps(record, separators=(",", ":")) + "\n"
