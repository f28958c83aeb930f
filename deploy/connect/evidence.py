"""What a host says of its ranks when it is asked why a job stands still (deploy/agent/job/evidence.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal, NamedTuple

from ..decode import AtMost, Between, Like, message
from ..hosts.bounds import Bytes, Code, Count, Name, Number, Path, Seconds, Words

_Where = Annotated[str, AtMost(256)]
_Rate = Annotated[float, Between(0, 1e9)]

SETUP = "setup"
"""In place of a group: what makes groups, `init_process_group` and `new_group`."""


class Line(NamedTuple):
    """A line of a Python stack; `own`: of a file of the user's project."""

    function: Words
    file: Path
    line: Number | None
    own: bool


@message(frozen=True)
class Process:
    """A rank's process: its state in proc(5), the kernel's function that it waits in, cores that it uses.

    `faults`: pages a second that it waits for the disk for. Sizes in bytes.
    """

    pid: Count
    state: Annotated[str, AtMost(1)]
    waits_in: _Where = ""
    busy: _Rate = 0.0
    faults: _Rate = 0.0
    resident: Bytes = 0
    swapped: Bytes = 0
    threads: Count = 0


@message(frozen=True)
class End:
    """How a rank that is gone has ended."""

    code: Code
    out_of_memory: bool = False


@message(frozen=True)
class GroupCount:
    """How many collectives of a group a rank has begun.

    `ranks`: its members as `0-3,6,8-126/2`, empty for all, `?` if they are too many to say.
    """

    group: Name
    kind: Name
    ranks: Name
    count: Count


@message(frozen=True)
class Entry:
    """A collective or message that a rank has begun. Times are of its host's clock.

    `kind`: who counted it: `call` for calls of torch.distributed, `message` for send and recv, `work` for
    Muster's MPI backend, `torch` for torch's own record.
    """

    state: Literal["i", "a", "d", "f"]
    """In the call; the call has returned and the work goes on; complete; failed."""
    group: Name
    kind: Literal["call", "message", "work", "torch"]
    seq: Count
    """The number of it in the group, from 1 on."""
    at: Seconds
    op: Name
    end: Seconds = 0.0
    number: Count = 0
    where: _Where = ""
    """The line of the program: `train.py:88`."""
    dtype: Name = ""
    elements: Number = 0
    bytes: Number = 0
    root: Number | None = None
    peer: Number | None = None
    tag: Number = 0


@message(frozen=True)
class Evidence:
    """All that a host knows of a rank. `missing`: why it has no record."""

    now: Seconds
    torch: Name = ""
    missing: Words = ""
    groups: Annotated[tuple[GroupCount, ...], AtMost(64)] = ()
    entries: Annotated[tuple[Entry, ...], AtMost(512)] = ()
    trace: Annotated[tuple[Entry, ...], AtMost(512)] = ()
    process: Process | None = None
    frames: Annotated[tuple[Line, ...], AtMost(1 << 12)] = ()
    error: Words = ""
    """Why there is no stack."""
    end: End | None = None


@message(frozen=True)
class EvidenceHere:
    """The evidence of each rank of a host."""

    ranks: Annotated[Mapping[Annotated[str, Like(r"\d{1,7}")], Evidence], AtMost(1 << 12)] = field(
        default_factory=dict
    )
