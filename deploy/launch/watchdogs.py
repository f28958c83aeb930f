"""Watches over a launch: stalls, and the start.

Notes name a stall by the rule of deploy/why/stall.py. `--stall-timeout` ends the job, after one of two: a
rank is stopped (SIGSTOP) or stuck in the kernel (a file system that does not answer) for that long, or no
rank prints and none uses its processor or a GPU. A rank that computes in silence is not stalled. A rank that
polls while it waits, as under MPI and CUDA, looks busy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from ..common.clock import now
from ..connect.cluster import Cluster
from ..connect.fanout import in_thread
from ..connect.reports import Pulses
from ..console.printed import figures_of
from ..console.text import count, duration, span
from ..hosts.samples import HostSample
from ..why.stall import IDLE_SHARE, MANY_COLLECTIVES, StallRule, gpus_compute, stall_text
from .diagnosis import gather_waits
from .result import Failure
from .state import LaunchState

if TYPE_CHECKING:
    from ..why.verdict import Verdict

_NAMES = {"T": "stopped (SIGSTOP)", "D": "stuck in the kernel (state D: a disk or network file system?)"}


@dataclass
class _Seen:
    """The last pulses of a rank. The times are of the driver's monotonic clock."""

    cpu: float
    at: float
    active: float
    state: str = ""
    since: float = 0.0


class StallWatchdog:
    """Detects stalls from the pulses and the output of the ranks."""

    def __init__(self, state: LaunchState, seconds: float) -> None:
        self.seconds = seconds
        self._state = state
        self._seen: dict[int, _Seen] = {}
        self._printed = time.monotonic()

    def printed(self) -> None:
        """Note that a rank printed something."""
        self._printed = time.monotonic()

    def pulse(self, host: str, report: Pulses) -> None:
        """Handle a host's report of the processor time and state of its ranks."""
        now = time.monotonic()
        for name, pulse in report.ranks.items():
            rank, cpu, state = int(name), pulse.cpu, pulse.state
            self._state.require_own(host, rank)
            seen = self._seen.setdefault(rank, _Seen(cpu, now, active=now))
            if cpu - seen.cpu > IDLE_SHARE * (now - seen.at):
                seen.active = now
            if state != seen.state:
                seen.state, seen.since = state, now
            seen.cpu, seen.at = cpu, now
        self._judge(now)

    def sampled(self, sample: HostSample) -> None:
        """A host has measured its GPUs: a rank is active while one that its processes use computes."""
        for entry in sample.ranks:
            if entry.gpus and entry.rank in self._seen and gpus_compute(entry, sample, 0):
                self._seen[entry.rank].active = time.monotonic()

    def _judge(self, now: float) -> None:
        state = self._state
        if not state.all_started or state.failures:
            return
        running = {rank: seen for rank, seen in self._seen.items() if rank not in state.ends}
        for kind, name in _NAMES.items():
            stuck = {rank for rank, seen in running.items() if seen.state == kind}
            if odd := sorted(rank for rank in stuck if now - running[rank].since > self.seconds):
                self._fail(f"{name} for {self.seconds:.0f} s", odd)
                return
        active = max([self._printed, *(seen.active for seen in running.values())])
        if running and now - active > self.seconds:
            nothing = f"no rank has printed anything or used its processor for {self.seconds:.0f} s"
            for kind, name in _NAMES.items():
                if odd := sorted(rank for rank, seen in running.items() if seen.state == kind):
                    self._fail(f"{name}, and {nothing}", odd)
                    return
            if odd := sorted(rank for rank in running if rank in state.lingering):
                self._fail(f"{state.lingering[odd[0]].reason}, and {nothing}", odd)
                return
            self._fail(nothing, [])

    def _fail(self, reason: str, odd: list[int]) -> None:
        if len(odd) > 1:
            reason = f"{self._state.name(odd)}: {reason}"
        placed = self._state.placed[odd[0]] if len(odd) == 1 else None
        host, rank = (placed.host, placed.rank) if placed else (None, None)
        self._state.fail(Failure("stall", reason, 3, host=host, rank=rank, at=now()))


LOOK_SECONDS = 2.0
LONGEST_LINE = 500


class StallNotes:
    """Notes that the job stalls, with the cause, and that it continues. It never ends the job."""

    def __init__(self, state: LaunchState, cluster: Cluster, floor: float) -> None:
        self._state, self._cluster, self._floor = state, cluster, floor
        self._rule = StallRule(floor, now())
        self._gpus = {rank: state.plan.gpu_of(placed) for rank, placed in state.placed.items()}
        self._begun: Mapping[int, int] = {}
        self._begun_is_old = False
        """Whether it may be of a time before the stall: then a larger number is no progress since."""
        self._answer: Future[tuple[Mapping[int, float], Verdict]] | None = None
        self._since: float | None = None
        """The time of the last progress, if a stall was noted."""
        self._why = ""

    def begin(self) -> None:
        """Look now and then from now on."""
        if self._floor:
            self._state.deadlines.after(min(LOOK_SECONDS, self._floor / 2), self._look)

    @property
    def note(self) -> str:
        """The stall for the verdict; empty if the job did not stall at its end."""
        return "" if self._since is None else stall_text(now() - self._since, self._why)

    def printed(self, text: str) -> None:
        """A rank, or a process that it started, has printed."""
        step = self._rule.needs_steps and figures_of(text[-LONGEST_LINE:])
        self._rule.progressed(now(), step=bool(step and (step.step is not None or step.loss is not None)))
        self._note_end()

    def sampled(self, sample: HostSample) -> None:
        """A host has measured its ranks."""
        self._rule.sampled(sample, self._gpus)
        self._note_end()

    def begun(self, collectives: Mapping[int, int]) -> None:
        """The number of collectives that each rank has begun."""
        more = any(number > self._begun.get(rank, 0) for rank, number in collectives.items())
        if more and not self._begun_is_old:
            self._rule.progressed(now(), step=max(collectives.values()) >= MANY_COLLECTIVES)
        self._begun, self._begun_is_old = {**self._begun, **collectives}, False
        self._note_end()

    @property
    def stepped(self) -> bool:
        """Whether a step was seen: in the output, or by many collectives."""
        return self._rule.makes_steps

    @property
    def stalled(self) -> bool:
        """Whether a stall was noted that has not ended."""
        return self._since is not None

    def _look(self) -> None:
        self.begin()
        state, at = self._state, now()
        if state.failures:
            return
        if not state.all_started:
            self._rule.progressed(at)
            return
        if self._answer and self._answer.done():
            self._judge(self._answer, at)
            self._answer = None
        elif not self._answer and self._rule.must_check(at, state.missing, recorded=state.plan.spec.record):
            channels = dict(self._cluster.channels)
            self._answer = in_thread(lambda: gather_waits(state.plan, channels))

    def _note_end(self) -> None:
        """Note at once that a stall has ended: the job may end a moment later."""
        if self._since is not None and self._rule.ended is not None:
            again = "steps again" if self._rule.ended_by_step else "output or processor use again"
            text = f"{again} after {duration(self._rule.ended - self._since)}"
            self._state.note_stall("steps.resumed", self._since, now(), text)
            self._since = None

    def _judge(self, answer: Future[tuple[Mapping[int, float], Verdict]], at: float) -> None:
        waits, verdict = ({}, None) if answer.exception() else answer.result()
        if self._rule.judge(at, self._state.missing, waits) and self._rule.since is not None:
            self._since, self._why, self._begun_is_old = self._rule.since, self._cause(verdict), True
            self._state.note_stall("steps.stopped", self._since, at, self._why)

    def _cause(self, verdict: Verdict | None) -> str:
        """The verdict in one line; without any position, the facts."""
        if verdict and (verdict.waiting or verdict.where or verdict.culprits):
            return verdict.summary
        ranks, job = count(len(self._state.missing), "rank"), self._state.plan.spec.job
        return f"no output and no processor use on all {ranks}; muster why {job} shows where they are"


BUSY = 2.0
"""From a load of so many times the processors of a host on, its ranks start late."""
MOST_BUSY = 4


class StartWatchdog:
    """Fails a launch whose ranks have not all started after a time."""

    def __init__(self, state: LaunchState, seconds: float, samples: Mapping[str, HostSample]) -> None:
        """`samples`: the newest of each host."""
        self._state, self._seconds, self._samples = state, seconds, samples
        state.deadlines.after(seconds, self._judge)

    def _judge(self) -> None:
        state = self._state
        if state.all_started or state.failures:
            return
        reason = f"{self._missing()} had not started after {self._seconds:.0f} s{self._busy()}"
        state.fail(Failure("start", reason, 3, at=now(), tail=tuple(state.launcher_tail)))

    def _busy(self) -> str:
        """`; node2 is busy (a load of 35 on 2 processors): --start-timeout SECONDS waits longer`."""
        hosts = {
            placed.host for rank, placed in self._state.placed.items() if rank not in self._state.started
        }
        busy = {
            name: f"a load of {sample.load:.0f} on {count(sample.cpus, 'processor')}"
            for name, sample in self._samples.items()
            if name in hosts and sample.load and sample.cpus and sample.load >= BUSY * sample.cpus
        }
        named = [f"{name} is busy ({load})" for name, load in [*busy.items()][:MOST_BUSY]]
        return f"; {', '.join(named)}: --start-timeout SECONDS waits longer" if named else ""

    def _missing(self) -> str:
        """`rank 1 (node1: mpirun started), ranks 2-3 (node2: daemon asked for)`."""
        state = self._state
        unstarted = [placed for rank, placed in state.placed.items() if rank not in state.started]
        return ", ".join(
            f"{span([placed.rank for placed in ranks])} ({host}: {state.phases[host]})"
            for host, ranks in groupby(unstarted, lambda placed: placed.host)
        )
