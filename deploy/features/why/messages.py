"""Requests about a job that stalls or is slow: the evidence and the arrivals of a host's ranks.

features/why/on_host/evidence.py and features/why/on_host/arrivals.py gather the answers.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Annotated, Any, Literal, NamedTuple

from ...core.connect.requests import Request
from ...core.decode import MALFORMED, AtMost, Between, Like, from_json, lazy_dataclass
from ...core.hosts.bounds import Bytes, Code, Count, Name, Number, Path, Rank, Seconds, Text
from ...core.hosts.host_sample import MOST_GPUS, GpuSample
from ...core.text.text import duration

_Where = Annotated[str, AtMost(256)]
_Rate = Annotated[float, Between(0, 1e9)]

SETUP = "setup"
"""Stands for a group in calls that make groups: `init_process_group` and `new_group`."""


class StackLine(NamedTuple):
    """A line of a Python stack; `own`: of a file of the user's project."""

    function: Text
    file: Path
    line: Number | None
    own: bool


@lazy_dataclass(frozen=True)
class FileLock:
    """The lock of a file for which a process waits, and the process that has it.

    `pid` is 0 if that is of another container or host; `rank`: the rank of this host that it is.
    """

    path: Path
    pid: Count
    program: _Where
    rank: Number | None = None


@lazy_dataclass(frozen=True)
class Child:
    """A process that a rank has started; `code` if it has ended, and the rank has not waited for it."""

    pid: Count
    program: _Where
    code: Code | None = None


@lazy_dataclass(frozen=True)
class ProcessState:
    """A rank's process: its state in proc(5), the kernel's function that it waits in, cores that it uses.

    `faults`: major page faults a second. Sizes in bytes.
    """

    pid: Count
    state: Annotated[str, AtMost(1)]
    waits_in: _Where = ""
    busy: _Rate = 0.0
    faults: _Rate = 0.0
    resident: Bytes = 0
    swapped: Bytes = 0
    threads: Count = 0
    unanswered: Annotated[tuple[_Where, ...], AtMost(8)] = ()
    """The addresses to which its TCP connections send again and again, without an answer."""
    addresses: Annotated[tuple[_Where, ...], AtMost(8)] = ()
    """The addresses of its host, without ports, at which it has TCP connections."""
    file_lock: FileLock | None = None
    children: Annotated[tuple[Child, ...], AtMost(8)] = ()


@lazy_dataclass(frozen=True)
class End:
    """The end of a rank."""

    code: Code
    out_of_memory: bool = False


@lazy_dataclass(frozen=True)
class GroupCount:
    """The number of collectives of a group that a rank has begun.

    `ranks`: its members as `0-3,6,8-126/2`, empty for all, `?` if they are too many to list.
    """

    group: Name
    kind: Name
    ranks: Name
    count: Count


class Meeting(NamedTuple):
    """What a rank gave to `init_process_group`: the address of the store, its group's size, its own number.

    Empty and -1 where they are unknown.
    """

    address: _Where
    size: Number
    rank: Number


@lazy_dataclass(frozen=True)
class RecordedCall:
    """A collective or message that a rank has begun. Times are of its host's clock.

    `kind`: who counted it: `call` for calls of torch.distributed, `message` for send and recv, `work` for
    Muster's MPI backend, `torch` for torch's own record.
    """

    state: Literal["i", "a", "d", "f"]
    """In the call, or waited for; the call has returned and the work continues; complete; failed."""
    group: Name
    kind: Literal["call", "message", "work", "torch"]
    seq: Count
    """The number of it in the group, from 1 on."""
    at: Seconds
    op: Name
    end: Seconds = 0.0
    """When the call returned."""
    wait: Seconds = 0.0
    """When the program began to wait for it, or ended that, if the call had returned before."""
    number: Count = 0
    where: _Where = ""
    """The line of the program: `train.py:88`."""
    dtype: Name = ""
    elements: Number = 0
    bytes: Number = 0
    root: Number | None = None
    peer: Number | None = None
    tag: Number = 0
    meets: Meeting | None = None
    """Of `init_process_group`."""


@lazy_dataclass(frozen=True)
class Evidence:
    """A host's evidence about a rank. `missing`: why it has no record."""

    now: Seconds
    missing: Text = ""
    groups: Annotated[tuple[GroupCount, ...], AtMost(64)] = ()
    entries: Annotated[tuple[RecordedCall, ...], AtMost(512)] = ()
    trace: Annotated[tuple[RecordedCall, ...], AtMost(512)] = ()
    process: ProcessState | None = None
    frames: Annotated[tuple[StackLine, ...], AtMost(1 << 12)] = ()
    error: Text = ""
    """Why there is no stack."""
    end: End | None = None
    gpus: Annotated[tuple[GpuSample, ...], AtMost(MOST_GPUS)] = ()
    """The GPUs that it uses; none if they are unknown."""


@lazy_dataclass(frozen=True)
class HostEvidence:
    """The evidence of each rank of a host."""

    ranks: Annotated[Mapping[Annotated[str, Like(r"\d{1,7}")], Evidence], AtMost(1 << 12)] = field(
        default_factory=dict
    )


MOST_ARRIVALS = 256  # of a rank in a group: what its ring holds
_Share = Annotated[float, Between(0, 1)]


class CallSite(NamedTuple):
    """A collective of the program: its operation, line and size; `waits`: it ends when all ranks arrived."""

    op: Name
    where: Annotated[str, AtMost(256)]
    bytes: Bytes
    waits: bool


@lazy_dataclass(frozen=True)
class GroupArrivals:
    """The last collectives of a group that a rank has begun: three lists of the same length, in order.

    `kind`: who counted, as in a `RecordedCall`. `at`: by the host's time of day. `sites`: indexes in the
    rank's list of sites.
    """

    group: Name
    kind: Literal["call", "work", "torch"]
    count: Count
    """The number of all of them."""
    seqs: Annotated[tuple[Count, ...], AtMost(MOST_ARRIVALS)]
    at: Annotated[tuple[Seconds, ...], AtMost(MOST_ARRIVALS)]
    sites: Annotated[tuple[Count, ...], AtMost(MOST_ARRIVALS)]
    ranks: Name = ""
    """Its members, as in a `GroupCount`."""


@lazy_dataclass(frozen=True)
class Pressure:
    """The reasons why a rank's main thread did not run since the last request: shares of the time.

    `queued`: it was ready to run, and other threads had the processors; `throttled`: the
    share of periods in which its cgroup's quota was used up. None if the host does not count it.
    """

    queued: _Share | None = None
    throttled: _Share | None = None


@lazy_dataclass(frozen=True)
class Arrivals:
    """The collectives of a rank. `set_up`: the begin and end of its last set-up, by its host's clock."""

    sites: Annotated[tuple[CallSite, ...], AtMost(4 * MOST_ARRIVALS)] = ()
    tracks: Annotated[tuple[GroupArrivals, ...], AtMost(16)] = ()
    pressure: Pressure | None = None
    set_up: tuple[Seconds, Seconds] | None = None


@lazy_dataclass(frozen=True)
class HostArrivals:
    """The collectives of each rank of a host. `cost`: seconds of processor time that this answer took."""

    ranks: Annotated[Mapping[Annotated[str, Like(r"\d{1,7}")], Arrivals], AtMost(1 << 12)] = field(
        default_factory=dict
    )
    cost: Annotated[float, Between(0, 1e6)] = 0.0


@lazy_dataclass(frozen=True)
class Straggler:
    """A rank that the others wait for. Seconds; `since` is a time by the driver's clock.

    `often`: in which share of the last `steps` steps. `regular`: the steps are those of the program; else
    each is just a number of collectives. `to`: the collective that it begins late. `cause`: empty if it is
    unknown.
    """

    rank: Rank
    host: Name
    late: Seconds
    step_seconds: Seconds
    often: _Share
    steps: Count
    regular: bool
    to: Text
    since: Seconds
    cause: Text = ""

    @property
    def share(self) -> float:
        """The share of a step in which the other ranks wait for this one."""
        return self.late / self.step_seconds if self.step_seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain values, for programs."""
        return asdict(self)


@lazy_dataclass(frozen=True)
class JobStall:
    """A running job makes no progress since this time, by its driver's clock, and the cause."""

    since: Seconds
    why: Text


STALL, LATE = "stall", "late"
"""What the driver records of a running job, in `JobState.recorded`."""
MOST_LATE = 64


def stall_text(seconds: float, why: str) -> str:
    """`no step for 1 min 36 s: rank 3 has not come to all_reduce #41 of group 0 (slow.py:8): ...`."""
    return f"no step for {duration(seconds)}: {why}"


def stall_of(recorded: Mapping[str, str]) -> JobStall | None:
    """The stall of a running job, by its driver."""
    found: JobStall | None = _read(JobStall, recorded.get(STALL, ""))
    return found


def late_of(recorded: Mapping[str, str]) -> Sequence[Straggler]:
    """The ranks of a running job that the others wait for, by the sums of its driver."""
    return _read(Annotated[tuple[Straggler, ...], AtMost(MOST_LATE)], recorded.get(LATE, "")) or ()


def _read(kind: Any, text: str) -> Any:
    """The recorded value; None without one, and for a text of another form: a host may send anything."""
    with contextlib.suppress(*MALFORMED):
        return from_json(kind, json.loads(text)) if text else None
    return None


WHY = Request("why", HostEvidence, ranks=lambda answer: answer.ranks)
ARRIVALS = Request("arrivals", HostArrivals, ranks=lambda answer: answer.ranks)
