"""Whether a job stalls: the one rule. Pure: signs of life in, judgement out.

A job stalls if, for long, no rank has printed, made a step or begun a collective, and each rank was idle or
waited in one collective. A rank that computes, or that reads or writes files, is at work, unless it polls in
a collective: then its record shows that it waits.

How long is long: the floor (60 s, LaunchSpec.stall_note) if the job has made steps and a rank waits in a
collective; UNSURE times that before the first steps (imports, compilation, the first data), and if no record
shows that a rank waits; in any case TIMES times the longest break that the job has recovered from, up to MOST
times the floor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ...core.hosts.host_sample import IDLE_SHARE, GpuSample, HostSample, RankSample
from .positions import Rank

UNSURE, TIMES, MOST = 5.0, 3.0, 30.0
LEAST_RATE = 1 << 16
"""Bytes a second that a rank, or the host of a rank in state D, must move to be at work."""
IDLE_GPU = 0.05
MANY_COLLECTIVES = 8
"""A rank that has begun so many is past the set-up of its groups: it makes steps."""


class StallRule:
    """The signs of life of one attempt. All times are of the driver's clock."""

    def __init__(self, floor: float, at: float) -> None:
        self._floor = floor
        self._progress = at
        self._worked: dict[int, float] = {}
        self.seen: dict[int, RankSample] = {}
        self._seen_at: dict[int, float] = {}
        """The newest sample of each rank, and its time."""
        self._state_since: dict[int, float] = {}
        """Since when each rank is in the state of its newest sample."""
        self.makes_steps = False
        """Whether the job has made steps, as its output or its collectives show."""
        self._idle_break = self._silent_break = 0.0
        self._next_idle = self._next_busy = 0.0
        """No check before these times."""
        self._step: int | None = None
        self._waits = False
        self.since: float | None = None
        """The time of the last progress, while the job stalls."""
        self.ended: float | None = None
        """The time at which the last stall ended."""
        self.ended_by_step = False

    def progressed(self, at: float, *, step: bool = False) -> None:
        """A rank has printed, or made a step, or begun a collective, which may be known later than others."""
        if step or not self._waits:
            self._end(at, step=step)
        if self.makes_steps:
            self._idle_break = max(self._idle_break, at - self.active)
            self._silent_break = max(self._silent_break, at - self._progress)
        self.makes_steps |= step
        self._progress = max(self._progress, at)
        self._next_idle = self._next_busy = 0.0

    def sampled(self, sample: HostSample, likely: Mapping[int, int], *, looked: bool = False) -> None:
        """A host has measured its ranks. `likely`: the number of the GPU that each rank probably uses.

        `looked`: meanwhile the ranks were asked in what they wait, for which they read files.
        """
        for measured in sample.ranks:
            entry = replace(measured, read=None, written=None) if looked else measured
            before = self.seen.get(entry.rank)
            starved = before is not None and before.state == entry.state == "R"  # others use its processor
            if before is None or starved or at_work(entry, sample, likely[entry.rank]):
                if self.makes_steps:
                    self._idle_break = max(self._idle_break, sample.at - self.active)
                self._worked[entry.rank] = sample.at
                if not self._waits:
                    self._end(sample.at, step=False)
            if before is None or before.state != entry.state:
                self._state_since[entry.rank] = sample.at
            self.seen[entry.rank], self._seen_at[entry.rank] = entry, sample.at
        if sample.training and sample.training.step != self._step:
            self._step = sample.training.step
            self.progressed(sample.at, step=True)

    def must_check(self, at: float, running: Collection[int], *, recorded: bool) -> bool:
        """Whether it is time to ask the hosts in what the ranks wait.

        Ranks that compute are asked only if they are recorded, and ever more rarely.
        """
        silent = at - self._progress
        if self.since is not None or not running:
            return False
        if min(silent, *(self._idle(rank) for rank in running)) >= self._long(sure=True):
            return at >= self._next_idle
        most = max(self._long(sure=True), min(TIMES * self._silent_break, MOST * self._floor))
        return recorded and silent >= most and at >= self._next_busy

    def judge(self, at: float, running: Collection[int], waits: Mapping[int, float]) -> bool:
        """Whether the job stalls. `waits`: for each rank that waits in a collective, for how long."""
        sure = any(seconds >= self._long(sure=True) for seconds in waits.values())
        long, silent = self._long(sure=sure), at - self._progress
        if silent >= long and all(
            self._idle(rank) >= long or waits.get(rank, 0.0) >= long for rank in running
        ):
            self.since, self.ended, self._waits = self._progress, None, sure
            return True
        self._next_idle, self._next_busy = at + self._floor, at + max(silent, self._floor)
        return False

    def _end(self, at: float, *, step: bool) -> None:
        if self.since is not None:
            self._idle_break = max(self._idle_break, at - self.since)
            self.ended_by_step = step
            self.since, self.ended, self._waits = None, at, False

    def ranks_in(self, state: str, ranks: Collection[int], since: float) -> list[int]:
        """Those of the ranks that have been in a state, as in proc(5), since before this time."""
        return sorted(
            rank for rank in ranks if self.seen[rank].state == state and self._state_since[rank] < since
        )

    @property
    def active(self) -> float:
        """The time of the last sign of life."""
        return max([self._progress, *self._worked.values()])

    def _idle(self, rank: int) -> float:
        """Seconds for which the samples of a rank show that it was idle."""
        return self._seen_at[rank] - self._worked[rank] if rank in self._seen_at else 0.0

    def _long(self, *, sure: bool) -> float:
        floor = self._floor if sure and self.makes_steps else UNSURE * self._floor
        return max(floor, min(TIMES * self._idle_break, MOST * self._floor))


def at_work(entry: RankSample, sample: HostSample, likely: int) -> bool:
    """Whether a rank uses its processor, its GPUs or files."""
    host_moves = (sample.disk_read or 0.0) + (sample.disk_write or 0.0) + (sample.net_in or 0.0)
    return (
        (entry.cpu is None or entry.cpu >= IDLE_SHARE)
        or (entry.read or 0.0) + (entry.written or 0.0) >= LEAST_RATE
        or (entry.state == "D" and host_moves >= LEAST_RATE)
        or gpus_compute(entry, sample, likely)
    )


def gpus_compute(entry: RankSample, sample: HostSample, likely: int) -> bool:
    """Whether a GPU of a rank computes."""
    return any((gpu.utilisation or 0.0) >= IDLE_GPU for gpu in _gpus_of(entry, sample, likely))


def _gpus_of(entry: RankSample, sample: HostSample, likely: int) -> Sequence[GpuSample]:
    """The GPUs that a rank uses; if they are unknown, the likely one, or without it any of the host.

    Ranks may share a GPU, and CUDA_VISIBLE_DEVICES may give a rank another one.
    """
    if entry.gpus is not None:
        return [gpu for gpu in sample.gpus if gpu.index in entry.gpus]
    return [gpu for gpu in sample.gpus if gpu.index == likely] or sample.gpus


def own_loop(rank: Rank) -> str:
    """The function of the program in which a rank computes, without a call of a library; empty for none."""
    evidence = rank.evidence
    if not (evidence and evidence.process and evidence.frames) or evidence.process.busy < IDLE_SHARE:
        return ""
    inside = evidence.frames[0]
    computes = any((gpu.utilisation or 0.0) >= IDLE_GPU for gpu in evidence.gpus)
    return f"{inside.file}:{inside.function}" if inside.own and not computes else ""
