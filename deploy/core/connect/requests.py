"""The requests to an agent, and the types of their answers: about the host, about a launch, about jobs.

`channel.ask(FACTS)` returns a `Facts`. `Channel` checks an answer when it arrives; a mismatch ends the
connection to its host.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, TypeVar

from ..decode import MALFORMED, AtMost, OnlyValid, from_json, lazy_dataclass
from ..errors import MusterError
from ..hosts.bounds import (
    MOST_GPUS,
    MOST_HOSTS,
    AddressOrName,
    Bytes,
    Count,
    Digest,
    Interface,
    JobId,
    Name,
    Number,
    Path,
    Pid,
    Port,
    Rank,
    Seconds,
    Text,
)
from ..hosts.host_facts import Facts
from ..hosts.stuck_processes import StuckProcesses
from ..text.terminal import harmless
from ..text.text import clip, size
from ..wire.files import CHUNK_BYTES
from ..wire.frames import Frame

Answer = TypeVar("Answer")
MOST_ENTRIES = 1 << 18  # files of a folder or a run, contents of a tree
Pids = Annotated[tuple[Pid, ...], AtMost(1 << 16)]


@lazy_dataclass(frozen=True)
class Nothing:
    """The request is done, and has no other answer."""


@lazy_dataclass(frozen=True)
class Payload:
    """Bytes of a file; none at its end."""

    payload: bytes = b""


@dataclass(frozen=True)
class Request(Generic[Answer]):
    """The name of a request, and the type of its answer. `room`: the most bytes that may follow the answer.

    `stuck_after`: seconds after which an agent that reports to be busy, but uses no processor time, is given
    up, for a request that may take long.
    `ranks`: the ranks that an answer is about, if any; only ranks of its own host are allowed.
    """

    name: str
    answer: type[Answer]
    room: int = 0
    stuck_after: float | None = None
    ranks: Callable[[Answer], Iterable[str]] | None = None

    def read(self, frame: Frame, payload: bytes = b"") -> Answer:
        """The answer in a frame; ValueError if it is no answer to this request."""
        try:
            value: Any = {**frame, "payload": payload} if self.room else frame
            answer: Answer = from_json(self.answer, value)
        except MALFORMED as error:
            raise ValueError(f"its answer to {self.name}: {error}") from None
        return answer

    def require_own(self, answer: Answer, own: Container[int]) -> None:
        """ValueError for an answer about a rank of another host."""
        foreign = [rank for rank in map(int, self.ranks(answer)) if rank not in own] if self.ranks else []
        if foreign:
            text = f"rank {min(foreign)}, which the plan does not have there"
            raise ValueError(f"its answer to {self.name}: {text}")


# -- a host: its facts, its ports, which other hosts it reaches, parts of its files --

MOST_PART = 1 << 22
"""The most bytes of a file in an answer. A slow link gets smaller parts: the answer must arrive before the
host counts as silent (core/connect/channel.py)."""


@lazy_dataclass(frozen=True)
class Time:
    """The host's time of day, and its monotonic clock (core/wire/clock.py)."""

    time: Seconds
    steady: Seconds


@lazy_dataclass(frozen=True)
class OpenPort:
    """A port at which others try to reach the host, or why the host has none."""

    port: Port | None = None
    refused: Text | None = None


@lazy_dataclass(frozen=True)
class Reached:
    """The routes of a host to another: by address its own interface, or why the address is not reached."""

    interfaces: Annotated[Mapping[AddressOrName, Interface | None], AtMost(4096)] = field(
        default_factory=dict
    )
    refused: Annotated[Mapping[AddressOrName, Text], AtMost(4096)] = field(default_factory=dict)


@lazy_dataclass(frozen=True)
class HostsReached:
    """The routes of a host to others."""

    reached: Annotated[Mapping[Name, Reached], AtMost(MOST_HOSTS)]


TIME = Request("time", Time)
LOAD = Request("load", Nothing)
FACTS = Request("facts", Facts)
OPEN_PORT = Request("open_port", OpenPort)
FREE_PORT = Request("free_port", Nothing)
REACH = Request("reach", HostsReached)
FILE_PART = Request("file_part", Payload, MOST_PART)


# -- a launch: deliver, start, watch, and end --

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


# -- jobs, also of other drivers than theirs --

_Log = Annotated[str, AtMost(512)]
_Numbers = Annotated[tuple[Count, ...], AtMost(MOST_GPUS)]


@lazy_dataclass(frozen=True)
class Driver:
    """The process that drives a job."""

    host: Name
    pid: Pid


@lazy_dataclass(frozen=True)
class LeftOut:
    """A host that an attempt does not use any more."""

    host: Name
    why: Text


@lazy_dataclass(frozen=True)
class JobState:
    """The record of a job in its folder; `ended` and `exit_status` are None as long as there is no result."""

    job: JobId
    state: Literal["waiting", "running", "done", "failed", "stopped", "lost"]
    """`waiting`: its ranks have no hosts yet. `stopped`: a user ended it."""
    launcher: Name
    hosts: Annotated[tuple[Name, ...], AtMost(MOST_HOSTS)]
    ranks: Rank
    attempt: Count
    detached: bool
    started: Seconds
    ended: Seconds | None
    exit_status: Number | None
    why: Text
    last_line: Text
    folder: Path
    driver: Driver
    driver_folder: Path
    placed: Annotated[tuple[Rank, ...], AtMost(MOST_HOSTS)] = ()
    """The number of ranks of each host; the first ranks are on the first host."""
    spares: Annotated[tuple[Name, ...], AtMost(MOST_HOSTS)] = ()
    """The hosts without ranks that are ready for the next attempt."""
    gpus: Annotated[Mapping[Name, _Numbers], AtMost(MOST_HOSTS)] = field(default_factory=dict)
    """The numbers of the GPUs of its ranks, on each host where they are chosen."""
    left_out: Annotated[tuple[LeftOut, ...], AtMost(MOST_HOSTS)] = ()
    """The hosts that have left the job, each with the reason."""
    grace: Seconds = 0.0
    """Seconds that its ranks have for SIGTERM at a stop."""
    cause: Text = ""
    """The lines of its verdict that explain the failure."""
    recorded: Annotated[Mapping[Name, Text], AtMost(64)] = field(default_factory=dict)
    """What features record of a running job: a text for each name, which its feature reads."""
    saving: Annotated[tuple[Rank, ...], AtMost(MOST_ENTRIES)] = ()
    """The ranks of a job that is being ended that still handle SIGTERM."""
    user: Text = ""
    """The user who launched it; of a job of an older version, the owner of its record."""
    arrived: Seconds = 0.0
    """When it began, but no later than the machine with the record made its files: the order of jobs."""
    head: Name = ""
    """The host with the record; of a job of an older version, the first of its hosts."""

    @property
    def head_name(self) -> str:
        """The host whose record of the job counts; empty before it has hosts."""
        return self.head or next(iter(self.hosts), "")

    @cached_property
    def hosts_by_rank(self) -> dict[int, str]:
        """The host of each rank. `MusterError` for a record of an older version, which lacks that."""
        if len(self.placed) != len(self.hosts) or sum(self.placed) != self.ranks:
            text = "its record does not list the hosts of its ranks: it was launched by another version"
            raise MusterError(f"{self.job}: {text}")
        pairs = zip(self.hosts, self.placed, strict=True)
        return dict(enumerate(host for host, number in pairs for _ in range(number)))

    def require_own(self, rank: int, host: str, attempt: int) -> None:
        """`MusterError` for a record of this attempt that has a rank on a host which does not have it."""
        if self.placed and attempt == self.attempt and self.hosts_by_rank.get(rank) != host:
            text = f"a record of rank {rank} on {host}, where the plan does not have it"
            raise MusterError(f"{self.job}: {text}")

    @property
    def running(self) -> bool:
        """Whether the job runs, or waits to run."""
        return self.state in {"waiting", "running"}


@lazy_dataclass(frozen=True)
class JobList:
    """The jobs of a host. A malformed record costs only its own job."""

    jobs: Annotated[tuple[JobState, ...], AtMost(1 << 14), OnlyValid]


@lazy_dataclass(frozen=True)
class JobOutput:
    """Output of ranks, each text with the name of its log, and whether there is more.

    `at`: the bytes of `logs/order` that were read, from which another agent can continue.
    """

    output: Annotated[tuple[tuple[_Log, Annotated[str, AtMost(1 << 20)]], ...], AtMost(1 << 18)]
    more: bool
    at: Bytes


@lazy_dataclass(frozen=True)
class Told:
    """Whether the driver of a job was reached, and whether it was before."""

    told: bool
    again: bool = False


@lazy_dataclass(frozen=True)
class RunFiles:
    """The files of a run with their sizes, in bytes."""

    files: Annotated[tuple[tuple[Path, Bytes], ...], AtMost(MOST_ENTRIES)]


JOBS = Request("jobs", JobList)
OUTPUT = Request("output", JobOutput)
RECORD = Request("record", Nothing)
END_DRIVER = Request("end_driver", Told)
FILES = Request("files", RunFiles)
READ = Request("read", Payload, CHUNK_BYTES)
