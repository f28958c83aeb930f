"""Curves of all metrics of a program, the times of its steps, and which ranks were late. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ...core.decode import MALFORMED, from_json
from ..why.messages import Straggler
from ..why.stragglers import lines, pace_look
from .chart import Chart, Point, chart
from .run_records import Records, RunRecord, number_of

AXES = ("step", "epoch", "iteration", "time")
"""Keys for the horizontal axis; the first that every record has is used."""
MOST_CHARTS = 40
SLOW = 1.1
"""A rank is slow if its median step takes this many times as long as the usual one."""


@dataclass(frozen=True)
class RankSteps:
    """How long the steps of a rank took, in seconds."""

    rank: int
    steps: int
    median: float
    longest: float
    slow: bool


def _axis_of(records: Sequence[RunRecord]) -> str:
    """The name of the horizontal axis: a key that every record has, or the number of the line.

    A key that only grows is better than one that begins again, such as the step of an epoch.
    """
    found = "line"
    for name in AXES:
        values = [value for record in records if (value := number_of(record.get(name))) is not None]
        if records and len(values) == len(records):
            if values == sorted(values):
                return name
            found = name if found == "line" else found
    return found


def _points_of(records: Sequence[RunRecord], key: str, axis: str) -> list[Point]:
    """The values of a key over the axis, in the order of the axis."""
    began = number_of(records[0].get("time")) or 0.0 if records and axis == "time" else 0.0
    points = [
        ((number_of(record.get(axis)) or 0.0) - began if axis != "line" else float(index), value)
        for index, record in enumerate(records)
        if (value := number_of(record.get(key))) is not None
    ]
    return sorted(points, key=lambda point: point[0])


def _keys_of(records: Sequence[RunRecord]) -> list[str]:
    """Every key with a number, in the order of their first appearance."""
    axis = _axis_of(records)
    keys = dict.fromkeys(
        key for record in records for key, value in record.items() if number_of(value) is not None
    )
    return [key for key in keys if key not in {*AXES[:3], "time", "rank", axis}]


def curves(records: Sequence[RunRecord]) -> tuple[list[Chart], int]:
    """A chart for each key with numbers, and the number of keys without a chart."""
    by_rank = _by_rank(records)
    drawn = next(iter(by_rank.values()), ()) if len(by_rank) > 1 else records
    axis = _axis_of(drawn)
    keys = _keys_of(drawn)
    charts = [
        made
        for key in keys[:MOST_CHARTS]
        if (made := chart(key, axis, _points_of(drawn, key, axis))) is not None
    ]
    return charts, max(0, len(keys) - MOST_CHARTS)


def step_times(records: Sequence[RunRecord]) -> list[RankSteps]:
    """The times of the steps of each rank, for records with a rank."""
    times = {
        rank: [value for record in of_rank if (value := number_of(record.get("step_seconds"))) is not None]
        for rank, of_rank in _by_rank(records).items()
    }
    medians = {rank: median(values) for rank, values in times.items() if values}
    usual = median(medians.values()) if medians else 0.0
    return [
        RankSteps(
            rank, len(times[rank]), middle, max(times[rank]), len(medians) > 1 and middle > SLOW * usual
        )
        for rank, middle in sorted(medians.items())
    ]


def _by_rank(records: Sequence[RunRecord]) -> Mapping[int, list[RunRecord]]:
    ranks: dict[int, list[RunRecord]] = {}
    for record in records:
        if isinstance(rank := record.get("rank"), int):
            ranks.setdefault(rank, []).append(record)
    return ranks


MOST_STEPS = 1 << 20


def own_times(pace: Sequence[RunRecord]) -> list[RankSteps]:
    """How long each rank works on a step, without the waits for others, in the last attempt."""
    looks = [look for record in pace if (look := pace_look(record))]
    last = max((look.attempt for look in looks), default=0)
    times: dict[int, list[float]] = {}
    steps, late = Counter[int](), Counter[int]()
    for look in looks:
        for entry in look.ranks if look.attempt == last else ():
            times.setdefault(entry.rank, []).append(entry.own_seconds)
            steps[entry.rank] += look.steps
            late[entry.rank] += entry.late
    return [
        RankSteps(rank, steps[rank], median(values), max(values), 2 * late[rank] > len(values))
        for rank, values in sorted(times.items())
    ]


def slow_lines(records: Records, at: float) -> list[str]:
    """The lines of the verdict on late ranks; of a running job, those of the last look."""
    if records.result:
        ended = number_of(records.result.get("ended"))
        return lines(_stragglers(records.result), ended or at, ended=True)
    return lines(_stragglers(records.pace[-1]), at) if records.pace else []


def _stragglers(record: RunRecord) -> list[Straggler]:
    try:
        late = from_json(tuple[Straggler, ...], record.get("late") or [])
    except MALFORMED:
        return []
    return [rank for rank in late if 0 <= rank.often <= 1 and 0 <= rank.steps <= MOST_STEPS]
