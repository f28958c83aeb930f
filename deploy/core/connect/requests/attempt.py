"""Requests of a launch: deliver, start, watch, and end."""

from __future__ import annotations

from typing import Annotated

from ...decode import AtMost, lazy_dataclass
from ...hosts.bounds import Bytes, Count, Digest, Name, Path, Pid, Rank, Seconds
from ...hosts.stuck_processes import StuckProcesses
from ...text.terminal import harmless
from ...text.text import clip, size
from .request import MOST_ENTRIES, Nothing, Request

LONGEST_PATH = 120  # more characters would hide the rest of a line


@lazy_dataclass(frozen=True)
class Missing:
    """The contents that a host does not have."""

    missing: Annotated[tuple[Digest, ...], AtMost(MOST_ENTRIES)]


@lazy_dataclass(frozen=True)
class Prepared:
    """The contents that were damaged in the host's store; nothing is prepared until they are sent again."""

    damaged: Annotated[tuple[Digest, ...], AtMost(MOST_ENTRIES)] = ()


@lazy_dataclass(frozen=True)
class RankProcess:
    """A process of a rank; None for a process whose rank is not known."""

    rank: Rank | None
    pid: Pid
    name: Name


@lazy_dataclass(frozen=True)
class EndedProcess:
    """A program that was killed so many seconds after SIGTERM; or a process that its rank left behind.

    The latter got SIGTERM so many seconds after the last rank had ended.
    """

    rank: Rank | None
    pid: Pid
    name: Name
    program: bool
    seconds: Seconds


@lazy_dataclass(frozen=True)
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


@lazy_dataclass(frozen=True)
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


MISSING = Request("missing", Missing)
STORE = Request("store", Nothing)
PREPARE = Request("prepare", Prepared)
START = Request("start", Nothing)
SHELL = Request("shell", Nothing)
SHELL_END = Request("shell_end", Nothing)
PING = Request("ping", Nothing)
SIGNAL = Request("signal", Nothing)
STOP = Request("stop", Stopping, ranks=lambda answer: answer.ranks)
