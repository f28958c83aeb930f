"""The current stacks of all ranks of a job, with equal stacks folded.

py-spy reads them on the hosts (deploy/why/gather.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from ..connect.channel import Channel
from ..connect.fanout import on_every
from ..connect.requests.launch import STACKS, Frames, Stack
from ..console.fold import fold
from ..console.terminal import harmless
from ..console.text import span
from ..errors import lines_of

if TYPE_CHECKING:
    from ..why.positions import Rank

# An agent gives each py-spy 8 s. An agent that is slower than this is silent, and its host gets a problem.
STACKS_SECONDS = 12.0
_REMEDIES = {
    "Permission": "ptrace(2) is forbidden there: give the container the capability SYS_PTRACE",
    "Exec format": "py-spy of this machine is for another processor: pip install py-spy on that host",
    "No such file": "pip install py-spy here, or on that host",
}


@dataclass(frozen=True)
class Stacks:
    """The frames of each rank, innermost first; or a single line that says why there are none."""

    frames: Mapping[int, tuple[str, ...]]
    problems: Mapping[str, str]
    """The hosts that gave no stacks, and why."""
    unread: frozenset[int] = frozenset()
    """The ranks whose stack could not be read."""

    @property
    def odd(self) -> list[int]:
        """The readable ranks whose stack differs from that of most of them; none if there is no majority."""
        read = {rank: frames for rank, frames in self.frames.items() if rank not in self.unread}
        groups = fold(read.items())
        if not groups or 2 * len(groups[0][0]) <= len(read):
            return []
        return sorted(rank for ranks, _ in groups[1:] for rank in ranks)

    def __str__(self) -> str:
        lines = []
        for ranks, frames in fold(sorted(self.frames.items())):
            lines += [f"{span(ranks)}:", *(f"    {frame}" for frame in frames)]
        lines += lines_of(self.problems.items())
        return "".join(f"{line}\n" for line in lines)


def gather(job: str, channels: Mapping[str, Channel]) -> Stacks:
    """Ask all hosts at once for the stacks of a job."""
    from ..why.gather import own_py_spy  # noqa: PLC0415  # few jobs are ever asked

    tool = own_py_spy()
    asked = on_every(channels, lambda host: _ask(job, channels[host], tool))
    by_rank = {int(rank): stack for stacks in asked.results.values() for rank, stack in stacks.items()}
    return Stacks(
        {rank: _frames(stack) for rank, stack in by_rank.items()},
        {host: error.reason for host, error in asked.errors.items()},
        frozenset(rank for rank, stack in by_rank.items() if stack.error),
    )


def of_evidence(ranks: Sequence[Rank], problems: Mapping[str, str]) -> Stacks:
    """The stacks that are part of the evidence of a hang."""
    stacks = {
        rank.number: Stack(tuple(Frames(*frame[:3]) for frame in rank.evidence.frames), rank.evidence.error)
        for rank in ranks
        if rank.evidence and rank.evidence.process
    }
    return Stacks(
        {rank: _frames(stack) for rank, stack in stacks.items()},
        dict(problems),
        frozenset(rank for rank, stack in stacks.items() if stack.error),
    )


def _ask(job: str, channel: Channel, tool: bytes | None) -> Mapping[str, Stack]:
    from ..why.gather import send_py_spy  # noqa: PLC0415

    digest = send_py_spy(channel, tool, STACKS_SECONDS)
    answer = channel.ask(STACKS, job=job, host=channel.host, digest=digest, seconds=STACKS_SECONDS)
    return answer.stacks


def _frames(stack: Stack) -> tuple[str, ...]:
    if stack.error:
        error = harmless(stack.error)
        return (": ".join([error, *(remedy for sign, remedy in _REMEDIES.items() if sign in error)]),)
    # The frames of `python -m` itself are left out.
    program = takewhile(lambda frame: frame.file != "<frozen runpy>", stack.frames)
    return tuple(harmless(f"{frame.function} ({frame.file}:{frame.line})") for frame in program)
