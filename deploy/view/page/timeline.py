"""The time line of a job as coordinates of an SVG: attempts side by side, a row for each rank. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...console.text import duration
from .chart import ticks
from .course import Attempt, FirstFailure, RankCourse, RankOutcome, how

Scale = Callable[[float], float]

WIDTH, LEFT, RIGHT, TOP, FOOT = 1000, 120, 26, 30, 24
MOST_ROWS = 512
MOST_TITLES = 1500
"""Bars with a text under the pointer: more would make the page large. The table has all."""
CLASSES: dict[RankOutcome, str] = {
    "done": "done",
    "failed": "failed",
    "ended with it": "with",
    "cut off": "with",
    "running": "running",
    "never started": "never",
}
LEGEND = {
    "waiting": "starting",
    "done": "ended well",
    "running": "running",
    "failed": "failed first",
    "with": "ended with it",
    "never": "never started",
    "quiet": "printed nothing more",
}
QUIET_SHARE = 0.05
"""A rank that printed nothing for this share of the attempt before its end is drawn as quiet there."""


@dataclass(frozen=True)
class Bar:
    """A rank in one attempt: it waited from `wait`, ran from `x`, and was quiet from `quiet`."""

    y: float
    height: float
    kind: str
    wait: float
    x: float
    end: float
    quiet: float | None
    printed: float | None
    title: str


@dataclass(frozen=True)
class Band:
    """An attempt behind the rows."""

    x: float
    width: float
    name: str
    odd: bool


@dataclass(frozen=True)
class FailureMark:
    """The first failure of an attempt; `y`: the row of its rank or host; None for neither."""

    x: float
    left: float
    width: float
    """Of its attempt, as `left`."""
    y: float | None
    height: float
    text: str
    anchor: str


@dataclass(frozen=True)
class Timeline:
    """Everything that the template draws."""

    height: float
    legend: tuple[tuple[str, str], ...]
    """The states that occur: a class of style.css and its name."""
    bands: tuple[Band, ...]
    bars: tuple[Bar, ...]
    marks: tuple[FailureMark, ...]
    labels: tuple[tuple[float, str, bool], ...]
    """Each with whether its row failed first."""
    hosts: tuple[tuple[float, float], ...]
    """The top and the height of every second host's rows, which have a background."""
    ticks: tuple[tuple[float, str], ...]
    hidden: int
    """Ranks that are only in the table."""


def timeline(attempts: Sequence[Attempt]) -> Timeline | None:
    """The time line; None for a job without an event."""
    rows = _rows(attempts)
    if not rows:
        return None
    shown = rows[:MOST_ROWS]
    step = 18.0 if len(shown) <= 24 else 10.0 if len(shown) <= 72 else 4.0
    tops = {key: TOP + number * step for number, key in enumerate(shown)}
    began = min(attempt.began for attempt in attempts)
    span = max(max(attempt.ended for attempt in attempts) - began, 0.1)

    def x(at: float) -> float:
        return round(LEFT + min(max((at - began) / span, 0.0), 1.0) * (WIDTH - LEFT - RIGHT), 1)

    height = TOP + len(shown) * step + FOOT
    bars = [
        _bar(row, attempt, tops[key], step, x)
        for attempt in attempts
        for row in attempt.ranks.values()
        if (key := (row.host, row.rank)) in tops
    ]
    return Timeline(
        height=height,
        legend=tuple((kind, LEGEND[kind]) for kind in LEGEND if kind in _kinds(bars)),
        bands=tuple(_band(attempt, number, x) for number, attempt in enumerate(attempts)),
        bars=tuple(_without_titles(bars)),
        marks=tuple(
            _mark(attempt, attempt.failure, tops, step, x) for attempt in attempts if attempt.failure
        ),
        labels=tuple(_labels(shown, tops, step, _failed(attempts))),
        hosts=tuple(_host_backgrounds(shown, tops, step)),
        ticks=tuple((x(began + tick), _tick(tick)) for tick in _ticks(span)),
        hidden=len(rows) - len(shown),
    )


def _kinds(bars: Sequence[Bar]) -> set[str]:
    parts = {
        "waiting": any(bar.x > bar.wait for bar in bars),
        "quiet": any(bar.quiet is not None for bar in bars),
    }
    return {bar.kind for bar in bars} | {kind for kind, occurs in parts.items() if occurs}


def _ticks(span: float) -> list[float]:
    """Round seconds, minutes or hours."""
    unit = 1 if span < 120 else 60 if span < 7200 else 3600
    return [tick * unit for tick in ticks(0.0, span / unit, 6)]


def _tick(value: float) -> str:
    if value < 120:
        return f"{value:g} s"
    return f"{value / 60:g} min" if value < 7200 else f"{value / 3600:g} h"


def _rows(attempts: Sequence[Attempt]) -> list[tuple[str, int]]:
    """Every rank on every host where it ran, by hosts in their order."""
    hosts: dict[str, set[int]] = {}
    for attempt in attempts:
        for row in attempt.ranks.values():
            hosts.setdefault(row.host, set()).add(row.rank)
    return [(host, rank) for host, ranks in hosts.items() for rank in sorted(ranks)]


def _bar(row: RankCourse, attempt: Attempt, y: float, step: float, scale: Scale) -> Bar:
    started = row.started if row.started is not None else row.printed
    end = row.ended if row.ended is not None else attempt.ended
    last = row.last_printed if row.last_printed is not None else started
    quiet = None
    if (
        row.outcome != "done"
        and last is not None
        and end - last > QUIET_SHARE * (attempt.ended - attempt.began)
    ):
        quiet = scale(max(last, started or last))
    begin = started if started is not None else end
    return Bar(
        y=round(y + step * 0.14, 1),
        height=round(step * 0.72, 1),
        kind=CLASSES[row.outcome],
        wait=scale(attempt.began),
        x=scale(min(begin, end)),
        end=scale(end),
        quiet=quiet,
        printed=scale(row.printed) if row.printed is not None and step > 8 else None,
        title=f"rank {row.rank} on {row.host}: {how(row)}, {duration(max(0.0, end - begin))}",
    )


def _without_titles(bars: Sequence[Bar]) -> Sequence[Bar]:
    if len(bars) <= MOST_TITLES:
        return bars
    return [replace(bar, title="") for bar in bars]


def _band(attempt: Attempt, number: int, scale: Scale) -> Band:
    left = scale(attempt.began)
    name = "first attempt" if attempt.number == 0 else f"restart {attempt.number}"
    return Band(left, round(scale(attempt.ended) - left, 1), name, odd=number % 2 == 1)


def _mark(
    attempt: Attempt, failure: FirstFailure, tops: dict[tuple[str, int], float], step: float, scale: Scale
) -> FailureMark:
    of_host = [y for (host, _), y in tops.items() if host == failure.host]
    y: float | None = None
    height = step
    if failure.rank is not None:
        y = tops.get((failure.host, failure.rank))
    elif of_host:
        y, height = of_host[0], step * len(of_host)
    at, left = scale(failure.at), scale(attempt.began)
    anchor = "end" if at > WIDTH * 0.6 else "start"
    width = round(scale(attempt.ended) - left, 1)
    return FailureMark(at, left, width, y, height, failure.headline[:90], anchor)


def _failed(attempts: Sequence[Attempt]) -> set[tuple[str, int]]:
    """The ranks that failed first in an attempt."""
    first = [attempt.failure for attempt in attempts if attempt.failure]
    return {(failure.host, failure.rank) for failure in first if failure.rank is not None}


def _labels(
    rows: Sequence[tuple[str, int]],
    tops: dict[tuple[str, int], float],
    step: float,
    failed: set[tuple[str, int]],
) -> list[tuple[float, str, bool]]:
    """A label for each rank where there is room, otherwise for each host that has room, and for failures."""
    if step > 12:
        return [(tops[row] + step * 0.7, f"{_short(row[0])} · {row[1]}", row in failed) for row in rows]
    labels = [(tops[row] + step * 0.9, f"{_short(row[0])} · {row[1]}", True) for row in rows if row in failed]
    taken = [y for y, _, _ in labels]
    for host, _, y in _groups(rows, tops):
        if all(abs(y + 9 - other) >= 11 for other in taken):
            labels.append((y + 9, _short(host), False))
            taken.append(y + 9)
    return labels


def _short(name: str) -> str:
    return name if len(name) <= 15 else f"{name[:7]}…{name[-7:]}"


def _groups(
    rows: Sequence[tuple[str, int]], tops: dict[tuple[str, int], float]
) -> list[tuple[str, int, float]]:
    """Each host with the number of its rows and the top of its first."""
    groups: dict[str, tuple[int, float]] = {}
    for row in rows:
        count, y = groups.get(row[0], (0, tops[row]))
        groups[row[0]] = (count + 1, y)
    return [(host, count, y) for host, (count, y) in groups.items()]


def _host_backgrounds(
    rows: Sequence[tuple[str, int]], tops: dict[tuple[str, int], float], step: float
) -> list[tuple[float, float]]:
    return [(y, count * step) for _, count, y in _groups(rows, tops)[1::2]]
