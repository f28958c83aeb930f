"""The steps of each rank by when it came to collectives: what it does itself, and who was late. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from ...decode import MALFORMED, from_json
from ...why.slow import Straggler, lines
from .metrics import RankSteps
from .records import Record, Records, number_of

MOST_STEPS = 1 << 20


def own_times(pace: Sequence[Record]) -> list[RankSteps]:
    """How long each rank works on a step, without what it waits for others; of the last attempt."""
    numbers = [number_of(record.get("attempt")) or 0.0 for record in pace]
    last = max(numbers, default=0.0)
    looks = [record for record, number in zip(pace, numbers, strict=True) if number == last]
    times: dict[int, list[float]] = {}
    steps: dict[int, int] = {}
    late: dict[int, int] = {}
    for look in looks:
        for rank, entry in _ranks(look):
            own = number_of(entry.get("own_seconds"))
            if own is not None:
                times.setdefault(rank, []).append(own)
                steps[rank] = steps.get(rank, 0) + int(number_of(look.get("steps")) or 0)
                late[rank] = late.get(rank, 0) + (entry.get("late") is True)
    return [
        RankSteps(rank, steps[rank], median(values), max(values), 2 * late[rank] > len(values))
        for rank, values in sorted(times.items())
    ]


def _ranks(look: Record) -> Iterator[tuple[int, Mapping[str, Any]]]:
    ranks = look.get("ranks")
    for entry in ranks if isinstance(ranks, list) else []:
        if isinstance(entry, dict) and type(entry.get("rank")) is int:
            yield entry["rank"], entry


def slow_lines(records: Records, at: float) -> list[str]:
    """What the verdict says of late ranks; of a job that still runs, what the last look has found."""
    if records.result:
        ended = number_of(records.result.get("ended"))
        return lines(_stragglers(records.result), ended or at, ended=True)
    return lines(_stragglers(records.pace[-1]), at) if records.pace else []


def _stragglers(record: Record) -> list[Straggler]:
    try:
        found = from_json(tuple[Straggler, ...], record.get("late") or [])
    except MALFORMED:
        return []
    return [one for one in found if 0 <= one.often <= 1 and 0 <= one.steps <= MOST_STEPS]
