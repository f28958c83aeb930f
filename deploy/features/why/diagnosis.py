"""Explains a stalled job: the stacks of its ranks, and why they wait.

py-spy reads the stacks on the hosts (features/why/gather.py). Equal stacks are folded.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from ...core.connect.channel import Channel
from ...core.connect.requests import LOAD
from ...core.errors import lines_of
from ...core.job.cause import ended_with, in_collective, last_traceback
from ...core.job.events import LONGEST_TEXT, JobEvent, Stage, of_failure
from ...core.job.feature import Attempt, Feature
from ...core.job.result import Failure, Finding, LaunchResult, RankExit
from ...core.plan.launch_plan import LaunchPlan
from ...core.plan.spec import LaunchSpec
from ...core.text.fold import fold
from ...core.text.terminal import harmless
from ...core.text.text import span
from ...core.wire.clock import now
from ...core.wire.rank_logs import restart_suffix
from .descriptions import location
from .gather import gather, with_missing
from .messages import Evidence
from .options import WhyOptions
from .positions import Positions, Rank
from .stall import own_loop

if TYPE_CHECKING:
    from .hang_verdict import HangVerdict

_REMEDIES = {
    "Permission": "ptrace(2) is forbidden there: give the container the capability SYS_PTRACE",
    "Exec format": "py-spy of this machine is for another processor: pip install py-spy on that host",
    "No such file": "pip install py-spy here, or on that host",
}


@dataclass(frozen=True)
class RankStacks:
    """The frames of each rank, innermost first; or a single line with the reason why there are none."""

    frames: Mapping[int, tuple[str, ...]]
    problems: Mapping[str, str]
    """The hosts that gave no stacks, and why."""

    def __str__(self) -> str:
        lines = []
        for ranks, frames in fold(sorted(self.frames.items())):
            lines += [f"{span(ranks)}:", *(f"    {frame}" for frame in frames)]
        lines += lines_of(self.problems.items())
        return "".join(f"{line}\n" for line in lines)


def gather_stacks(job: str, channels: Mapping[str, Channel]) -> RankStacks:
    """Ask all hosts at once for the stacks of a job."""
    return stacks_of(*gather(job, channels))


def stacks_of(ranks: Sequence[Rank], problems: Mapping[str, str]) -> RankStacks:
    """The stacks in the evidence of ranks. `problems`: the hosts without evidence, and why."""
    running = {rank.number: rank.evidence for rank in ranks if rank.evidence and rank.evidence.process}
    return RankStacks(
        {rank: _frames(evidence) for rank, evidence in running.items()},
        dict(problems),
    )


def _frames(evidence: Evidence) -> tuple[str, ...]:
    if evidence.error:
        error = harmless(evidence.error)
        return (": ".join([error, *(remedy for sign, remedy in _REMEDIES.items() if sign in error)]),)
    # The frames of `python -m` itself are left out.
    return tuple(map(location, takewhile(lambda line: line.file != "<frozen runpy>", evidence.frames)))


# Failures that only the ranks themselves can explain.
STUCK = frozenset({"start", "stall"})
# Messages of Gloo, NCCL and Muster's MPI backend about a collective that took too long.
_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)
_OF_FRAME = re.compile(r"(\[rank\d+\]:)? {2}")  # its source line may have a parameter `timeout`


def needed(failure: Failure, spec: LaunchSpec) -> bool:
    """Whether a job stalls, or a rank of a recorded job failed in a collective."""
    may_show = failure.kind == "rank" and spec.of(WhyOptions).record
    return failure.kind in STUCK or (may_show and (_timed_out(failure) or in_collective(failure.tail)))


def _timed_out(failure: Failure) -> bool:
    return any(_TIMED_OUT.search(line) for line in last_traceback(failure.tail) if not _OF_FRAME.match(line))


@dataclass(frozen=True)
class Why(Finding):
    """Why a job stalled, or failed in a collective; None without an explanation."""

    verdict: HangVerdict | None

    def causes(self, result: LaunchResult) -> Iterator[str]:
        """The two lines; and where another rank failed first than the one that caused it, which is which."""
        if self.verdict:
            yield from (self.verdict.headline, self.verdict.cause)
            first = result.failure.rank if result.failure else None
            if first is not None and self.verdict.culprits and first not in self.verdict.culprits:
                yield f"rank {first} failed first, but {span(self.verdict.culprits)} caused it"

    def as_json(self) -> Mapping[str, Any]:
        return {"why": self.verdict.as_json() if self.verdict else None}


class Diagnosis(Feature):
    """Explains a job that stalls or does not start, and a rank that failed in a collective."""

    def begins(self, attempt: Attempt) -> None:
        """Send every host what it needs to say where its ranks are: any driver may ask."""
        for channel in attempt.cluster.channels.values():
            channel.post(LOAD, words=["why"])

    def explain(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Ask all ranks where they are."""
        failure = result.failure
        if failure is None or not needed(failure, attempt.plan.spec):
            return result
        attempt.emit(Stage("asking every rank where it is"))
        stacks, why = gather_explanation(failure, attempt)
        name = f"stacks{restart_suffix(attempt.plan.spec.attempt)}.txt"
        attempt.folder.keep(name, str(stacks))
        if failure.kind != "rank":  # else its last lines explain more
            failure = replace(failure, tail=(*failure.tail, *str(stacks).splitlines()))
        attempt.emit(of_failure(failure, attempt.plan))
        if why:
            attempt.emit(explanation(why, attempt.plan.spec))
        notes = result.notes
        if len(attempt.plan.hosts) > 1 and failure.kind == "stall" and not (why and why.culprits):
            notes = (*notes, "muster check --bench measures every link and host")
        return result.having(Why(why), failure=failure, notes=notes)

    def ended(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Any result says whether there is an explanation."""
        there = any(isinstance(finding, Why) for finding in result.findings)
        return result if there else result.having(Why(None))


def explanation(why: HangVerdict, spec: LaunchSpec) -> JobEvent:
    """The event that explains the failure of a job."""
    text = f"{why.headline}\n{why.cause}"[:LONGEST_TEXT]
    return JobEvent(at=now(), type="job.explained", job=spec.job, attempt=spec.attempt, text=text)


def gather_explanation(failure: Failure, attempt: Attempt) -> tuple[RankStacks, HangVerdict | None]:
    """Ask the hosts that still answer, before the job is ended: for the stacks, and why the ranks wait."""
    from .hang_verdict import explain, explain_crash

    plan, channels = attempt.plan, attempt.answering
    ranks, problems = gather(plan.spec.job, channels)
    every = without_victims(_every(ranks, problems, plan, channels), failure, attempt.state.ends)
    why = None
    if failure.kind == "rank" and not _timed_out(failure):
        why = explain_crash(every)
    elif failure.kind != "start":
        why = explain(every, stalled=True)
    return stacks_of(ranks, problems), why


MORE_LOOKS, BETWEEN_LOOKS = 3, 1.0
"""How often, and after how many seconds, the stack of a rank that computes is read again."""


def gather_waits(
    plan: LaunchPlan, channels: Mapping[str, Channel]
) -> tuple[Mapping[int, float], HangVerdict]:
    """For how long each rank has waited in a collective, and the verdict if nothing moves.

    Where all others wait, a rank that stays in one function of the program's own, as in an endless loop,
    counts as they do. One that computes in a library, as in an evaluation, is at work.
    """
    from .hang_verdict import explain
    from .waiting_ranks import waited

    ranks, problems = gather(plan.spec.job, channels)
    waits = waited(Positions(ranks))
    loops = {rank.number: place for rank in ranks if (place := own_loop(rank))}
    if waits and loops and waits.keys() | loops.keys() >= {rank.number for rank in ranks}:
        for _ in range(MORE_LOOKS):
            time.sleep(BETWEEN_LOOKS)
            again = {rank.number: own_loop(rank) for rank in gather(plan.spec.job, channels)[0]}
            loops = {rank: place for rank, place in loops.items() if again.get(rank) == place}
        waits |= dict.fromkeys(loops.keys() - waits.keys(), min(waits.values()))
    return waits, explain(_every(ranks, problems, plan, channels), stalled=True)


def _every(
    ranks: Sequence[Rank], problems: Mapping[str, str], plan: LaunchPlan, channels: Mapping[str, Channel]
) -> list[Rank]:
    """The ranks with evidence, and the others."""
    names = [host.host.name for host in plan.hosts]
    silent = [name for name in names if name in problems or name not in channels]
    return with_missing(ranks, {placed.rank: placed.host for placed in plan.ranks}, silent)


def without_victims(ranks: Sequence[Rank], failure: Failure, ends: Mapping[int, RankExit]) -> list[Rank]:
    """The ranks, without the ends of those that the launcher ended after the failure."""
    victims = ended_with(failure, ends)
    return [
        replace(rank, evidence=replace(rank.evidence, end=None), ended_with_job=True)
        if rank.evidence and rank.number in victims
        else rank
        for rank in ranks
    ]
