"""The reports that an agent sends without a request, each kind as a type.

`of_frame` checks each report where it arrives. A mismatch ends the connection to its host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal, NamedTuple

from ..decode import MALFORMED, AtMost, Between, from_json, lazy_dataclass
from ..errors import HostError
from ..hosts.bounds import Bytes, Code, Digest, Name, Number, Printed, Rank, Seconds, Text
from ..wire.frames import Frame


class Report:
    """A report. `event`: the name that an agent uses for its kind; the driver makes those without a name.

    `payload`: the field for the bytes that may follow it, if any, and `room`: how many there may be.
    """

    def __init_subclass__(cls, *, event: str = "", payload: str = "", room: int = 0) -> None:
        if event:
            KINDS[event] = cls
        if payload:
            PAYLOADS[event] = payload, room

    @classmethod
    def of(cls, frame: Frame) -> Report:
        """The report in a frame; one of MALFORMED for a protocol error."""
        report: Report = from_json(cls, frame)
        return report


KINDS: dict[str, type[Report]] = {}
"""The reports of agents, by the name of their event. Those of a feature are known once it is imported."""
PAYLOADS: dict[str, tuple[str, int]] = {}


@lazy_dataclass(frozen=True)
class OutOfMemory:
    """The kernel killed a process for lack of memory; `limit`: of its cgroup, in bytes."""

    limit: Bytes | None


@lazy_dataclass(frozen=True)
class RankStart(Report, event="rank-start"):
    """A rank has started."""

    rank: Rank
    local_rank: Rank
    world_size: Rank


@lazy_dataclass(frozen=True)
class RankOutput(Report, event="output"):
    """Output of a rank: whole lines, or at its end the rest."""

    rank: Rank
    stream: Literal["out", "err"]
    text: Printed


@lazy_dataclass(frozen=True)
class LogEnded(Report, event="log-ended"):
    """The log of a rank on its own host ends early; `why`: the reason, such as a full disk."""

    rank: Rank
    why: Text


@lazy_dataclass(frozen=True)
class RankEnded(Report, event="rank-end"):
    """A rank has ended, at a time of its host's clock."""

    rank: Rank
    code: Code
    time: Seconds
    tail: Annotated[tuple[Annotated[str, AtMost(1 << 12)], ...], AtMost(40)]
    out_of_memory: OutOfMemory | None = None
    alone: bool = False
    """Its MPI world has no other rank, though the job has more."""
    terminated: bool = False
    """The launcher asked it to end before it did."""
    found: Annotated[Mapping[Name, Text], AtMost(16)] = field(default_factory=dict)
    """What features have found about it on its host: a text for each name, which its feature reads."""


@lazy_dataclass(frozen=True)
class ProgramOver(Report, event="program-over"):
    """The program of a rank is over, at a time of its host's clock, but its process has not ended yet."""

    rank: Rank
    time: Seconds
    error: Annotated[tuple[Annotated[str, AtMost(1 << 12)], ...], AtMost(40)]
    """The last lines of the traceback, if an exception ended the program."""
    alive: Annotated[tuple[Annotated[str, AtMost(1 << 12)], ...], AtMost(40)]
    """The threads and processes that keep it alive: `thread 'writer' in save (train.py:31)`."""
    ends_in: Annotated[float, Between(0, 3600)] = 0.0
    """The process ends itself after so many seconds, 0 for never; `ended`: it has done so."""
    ended: bool = False


@lazy_dataclass(frozen=True)
class LauncherLine(Report, event="launcher"):
    """A line of mpirun or torchrun."""

    stream: Literal["out", "err"]
    text: Printed


@lazy_dataclass(frozen=True)
class CommandEnd(Report, event="command-end"):
    """The launcher's command on a host has ended."""

    code: Code
    time: Seconds
    out_of_memory: OutOfMemory | None = None


@lazy_dataclass(frozen=True)
class ShellAsked(Report, event="shell"):
    """mpirun on the reporting host asks for a command on another host."""

    number: Number
    host: Name
    command: Text


@lazy_dataclass(frozen=True)
class ShellEnd(Report, event="shell-end"):
    """Such a command has ended, on the reporting host."""

    code: Code
    time: Seconds


@lazy_dataclass(frozen=True)
class DaemonEnd(Report, event="daemon-end"):
    """Open MPI's daemon on a host was killed."""

    name: Name
    code: Code
    time: Seconds


@lazy_dataclass(frozen=True)
class StopAsked(Report, event="stop-asked"):
    """`fab stop` was called on a machine that is not the driver's. `by`: who called it.

    `grace`: from then on, in place of that of the launch.
    """

    by: Name
    grace: Annotated[float, Between(0, 1e6)] | None = None


@lazy_dataclass(frozen=True)
class FileHave(Report, event="file-have"):
    """The bytes of a file that are on a host."""

    digest: Digest
    have: Bytes


@lazy_dataclass(frozen=True)
class FileGot(Report, event="file-got"):
    """A file is on a host; `error`: why its content could not be used.

    `wrong`: the content itself is wrong, from any sender.
    """

    digest: Digest
    error: Text = ""
    wrong: bool = False


@lazy_dataclass(frozen=True)
class FileStuck(Report, event="file-stuck"):
    """No other host could give this host the rest of a file, or it was damaged on the way."""

    digest: Digest
    have: Bytes
    text: Text


@lazy_dataclass(frozen=True)
class FileSent(Report):
    """Not from a host: so much of a file the driver has sent to it; `error`: why it gets nothing more."""

    digest: str = ""
    have: int = 0
    error: str = ""


@lazy_dataclass(frozen=True)
class Lost(Report):
    """Not from a host: the connection to it has ended, for this reason."""

    reason: HostError = field(compare=False)


class Event(NamedTuple):
    """A report and its host. `size`: about how many bytes of this machine's memory it takes."""

    host: str
    report: Report
    size: int = 0


BUSY = "busy"
"""Sent by an agent while it works on a request: a sign of life."""


def room(frame: Frame) -> int:
    """The bytes that may follow a report."""
    name = frame.get("event")
    return PAYLOADS[name][1] if isinstance(name, str) and name in PAYLOADS else 0


def of_frame(frame: Frame, payload: bytes = b"") -> Report:
    """The report that an agent sent; ValueError for a protocol error."""
    name = frame.get("event")
    if not isinstance(name, str) or name not in KINDS:
        raise ValueError(f"an unknown report {str(name)[:40]!r}")
    try:
        raw = {PAYLOADS[name][0]: payload} if name in PAYLOADS else {}
        return KINDS[name].of({**frame, **raw})
    except MALFORMED as error:
        raise ValueError(f"the report {name}: {error}") from None
