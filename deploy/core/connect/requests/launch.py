"""Requests of a launch: deliver, start, watch, and end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from ...content.messages import FolderMark
from ...decode import AtMost, Like, message
from ...hosts.bounds import Bytes, Count, Digest, Name, Number, Path, Pid, Rank, Seconds, Text
from ...hosts.stuck_processes import StuckProcesses
from ...text.terminal import harmless
from ...text.text import clip, size
from .request import MOST_ENTRIES, Nothing, Payload, Request

LONGEST_PATH = 120  # more characters would hide the rest of a line
FETCHED = 1 << 22
"""The most bytes that are fetched at once. A slow link gets smaller requests: the answer must arrive before
the host counts as silent (core/connect/channel.py)."""


@message(frozen=True)
class HostSampled:
    """A new sample of a host, as JSON that features/samples/messages.py checks."""

    sample: Text


@message(frozen=True)
class Missing:
    """The contents that a host does not have."""

    missing: Annotated[tuple[Digest, ...], AtMost(MOST_ENTRIES)]


@message(frozen=True)
class Prepared:
    """The contents that were damaged in the host's store; nothing is prepared until they are sent again."""

    damaged: Annotated[tuple[Digest, ...], AtMost(MOST_ENTRIES)] = ()


@message(frozen=True)
class RankProcess:
    """A process of a rank; None for a process whose rank is not known."""

    rank: Rank | None
    pid: Pid
    name: Name


@message(frozen=True)
class EndedProcess:
    """A program that was killed so many seconds after SIGTERM; or a process that its rank left behind.

    The latter got SIGTERM so many seconds after the last rank had ended.
    """

    rank: Rank | None
    pid: Pid
    name: Name
    program: bool
    seconds: Seconds


@message(frozen=True)
class Stopping:
    """How far a host is with the end of a job."""

    over: bool
    left: StuckProcesses
    """Once it is over: the processes that could not be ended."""
    saving: Annotated[tuple[Rank, ...], AtMost(MOST_ENTRIES)] = ()
    """The ranks that handle SIGTERM."""
    behind: Annotated[tuple[RankProcess, ...], AtMost(1 << 10)] = ()
    """The processes that ranks left behind, and that are waited for."""
    ended: Annotated[tuple[EndedProcess, ...], AtMost(1 << 11)] = ()

    @property
    def ranks(self) -> set[str]:
        """The ranks that it is about."""
        behind, ended = (process.rank for process in self.behind), (process.rank for process in self.ended)
        return {str(rank) for rank in (*self.saving, *behind, *ended) if rank is not None}


@message(frozen=True)
class WrittenFiles:
    """A number of files, their bytes, and the path of the largest; `more`: there may be more."""

    files: Count
    bytes: Bytes
    more: bool
    largest: Path = ""

    @property
    def described(self) -> str:
        """`checkpoints/last.pt and 3 more, 44 MiB`."""
        if not self.files:
            return "unknown, because the search stopped at its limits" if self.more else "nothing"
        others = self.files - 1
        more = f" and {'more than ' * self.more}{others} more" if others or self.more else ""
        return f"{clip(harmless(self.largest), LONGEST_PATH)}{more}, {size(self.bytes)}"


@message(frozen=True)
class Written:
    """The files that the program of a job has written on a host: beside the code, and into $MUSTER_OUT.

    `folder` is equal on hosts that share the job's folder.
    """

    beside: WrittenFiles
    out: WrittenFiles
    folder: FolderMark


@message(frozen=True)
class MemoryKills:
    """The processes of a host that the kernel has killed for lack of memory, without those of ranks.

    `limit`: of their cgroup, in bytes.
    """

    kills: Count
    limit: Bytes | None


class StackFrame(NamedTuple):
    """A line of a Python stack."""

    function: Text
    file: Path
    line: Number | None


@message(frozen=True)
class Stack:
    """The stack of a rank, innermost frame first, or why it cannot be read."""

    frames: Annotated[tuple[StackFrame, ...], AtMost(1 << 12)] = ()
    error: Text = ""


@message(frozen=True)
class HostStacks:
    """The stack of each rank of a host."""

    stacks: Annotated[Mapping[Annotated[str, Like(r"\d{1,7}")], Stack], AtMost(1 << 12)]


MISSING = Request("missing", Missing)
STORE = Request("store", Nothing)
PREPARE = Request("prepare", Prepared)
START = Request("start", Nothing)
SHELL = Request("shell", Nothing)
SHELL_END = Request("shell_end", Nothing)
PING = Request("ping", Nothing)
WATCH = Request("watch", Nothing)
SAMPLE = Request("sample", HostSampled)
SIGNAL = Request("signal", Nothing)
STOP = Request("stop", Stopping, ranks=lambda answer: answer.ranks)
OUTPUTS = Request("outputs", Written)
MEMORY_KILLS = Request("memory_kills", MemoryKills)
FETCH = Request("fetch", Payload, FETCHED)
STACKS = Request("stacks", HostStacks, ranks=lambda answer: answer.stacks)
