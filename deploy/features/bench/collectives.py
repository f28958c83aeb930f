"""The rows of a sweep over collective operations, as values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from ...core.decode import AtMost, Between
from ...core.errors import MusterError
from .lines import About, Count, Word, values

OPERATIONS = (
    *("all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter"),
    *("alltoall", "gather", "scatter", "sendrecv", "hypercube"),
)
ROOTED = ("broadcast", "reduce", "gather", "scatter")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
TYPES = ("int8", "uint8", "int32", "int64", "half", "bfloat16", "float", "double")
REDUCTIONS = ("sum", "prod", "max", "min", "avg")
MOST_ROWS = 10_000
Positive = Annotated[float, Between(0, 1e15)]


@dataclass(frozen=True)
class CallFigures:
    """Microseconds of a call, GB/s, and wrong elements; None if they were not checked."""

    time_us: Positive
    algbw: Positive
    busbw: Positive
    wrong: Count | None


@dataclass(frozen=True)
class Row:
    """One size of one operation, in the columns of nccl-tests."""

    operation: Word
    size: Count
    count: Count
    type: Word
    redop: Word
    root: Annotated[int, Between(-1, 1 << 20)]
    out_of_place: CallFigures
    in_place: CallFigures


@dataclass(frozen=True)
class Refusal:
    """An operation that the backend refuses, and its message."""

    operation: Word
    message: Annotated[str, AtMost(400)]


def as_json(job: str, host: str, printed: Mapping[int, str]) -> dict[str, Any]:
    """The sweep that rank 0 on `host` printed. MusterError for any other output."""
    text = printed.get(0, "")
    about, first = values(text, "collectives", About, 1)
    rows, second = values(text, "collective", Row, MOST_ROWS)
    refused, third = values(text, "refused", Refusal, len(OPERATIONS))
    if problem := first or second or third or ("" if about else "rank 0 printed no figures"):
        raise MusterError(problem, host=host)
    return {
        "job": job,
        **asdict(about[0]),
        "rows": [asdict(row) for row in rows],
        "refused": {refusal.operation: refusal.message for refusal in refused},
    }
