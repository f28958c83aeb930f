"""The time line of a job as coordinates of an SVG: attempts side by side, a row for each rank. Pure.

Widths and horizontal positions are percent of the plot, heights are pixels: on a narrow screen the plot
becomes narrower, its rows and texts keep their size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from ...core.text.text import duration
from .chart import ticks
from .course import Attempt, FirstFailure, RankCourse, RankOutcome, how

Scale = Callable[[float], float]

TOP, FOOT = 22, 24
CHARACTER_WIDTH = 7
MOST_ROWS, MOST_TEXT = 512, 140
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
    "printed": "first output",
    "done": "ended well",
    "running": "running",
    "failed": "failed first",
    "with": "ended with it",
    "never": "never started",
    "quiet": "printed nothing more",
}
QUIET_SHARE, QUIET_SECONDS = 0.05, 2.0
"""A rank without output for this share of the attempt, and so long, before its end is drawn as quiet."""


@dataclass(frozen=True)
class Bar:
    """A rank in one attempt: it waited from `wait`, ran from `x`, and was quiet from `quiet`.

    `printed`: its first output.
    """

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
    """The first failure of an attempt; for a host, with the rows of its ranks, which end no bar in red."""

    x: float
    text: str
    is_stop: bool
    rows: tuple[float, float] | None
    """Top and height."""


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
    """Each with whether its rank failed first."""
    label_width: int
    hosts: tuple[tuple[float, float], ...]
    """The top and the height of the rows of every second host, which have a background."""
    ticks: tuple[tuple[float, str], ...]
    hidden: int
    """Ranks that are only in the table."""


def timeline(attempts: Sequence[Attempt]) -> Timeline | None:
    """The time line; None for a job without an event."""
    hosts = _hosts(attempts)
    if not hosts:
        return None
    shown = [*hosts][:MOST_ROWS]
    step = 18.0 if len(shown) <= 24 else 10.0 if len(shown) <= 72 else 4.0
    tops = {rank: TOP + number * step for number, rank in enumerate(shown)}
    began = min(attempt.began for attempt in attempts)
    span = max(max(attempt.ended for attempt in attempts) - began, 0.1)

    def x(at: float) -> float:
        return round(min(max((at - began) / span, 0.0), 1.0) * 100, 2)

    bars = [
        _bar(row, attempt, tops[row.rank], step, x)
        for attempt in attempts
        for row in attempt.ranks.values()
        if row.rank in tops
    ]
    failures = [(attempt, attempt.failure) for attempt in attempts if attempt.failure]
    failed = {failure.rank for _, failure in failures if failure.rank is not None}
    labels = _labels(hosts, tops, step, failed)
    return Timeline(
        height=TOP + len(shown) * step + FOOT,
        legend=tuple((kind, LEGEND[kind]) for kind in LEGEND if kind in _kinds(bars)),
        bands=tuple(_band(attempt, number, x) for number, attempt in enumerate(attempts)),
        bars=tuple(_without_titles(bars)),
        marks=tuple(_mark(attempt, failure, tops, step, x) for attempt, failure in failures),
        labels=tuple(labels),
        label_width=max(len(text) for _, text, _ in labels) * CHARACTER_WIDTH + 12,
        hosts=tuple((y, count * step) for _, count, y in _groups(hosts, tops)[1::2]),
        ticks=tuple((x(began + tick), _tick(tick)) for tick in _ticks(span)),
        hidden=len(hosts) - len(shown),
    )


def _hosts(attempts: Sequence[Attempt]) -> dict[int, str]:
    """The host of each rank in its last attempt; the ranks of a host follow each other."""
    last = {row.rank: row.host for attempt in attempts for row in attempt.ranks.values()}
    order = {host: number for number, host in enumerate(dict.fromkeys(last[rank] for rank in sorted(last)))}
    return {rank: last[rank] for rank in sorted(last, key=lambda rank: (order[last[rank]], rank))}


def _kinds(bars: Sequence[Bar]) -> set[str]:
    parts = {
        "waiting": any(bar.x > bar.wait for bar in bars),
        "printed": any(bar.printed is not None for bar in bars),
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


def _bar(row: RankCourse, attempt: Attempt, y: float, step: float, scale: Scale) -> Bar:
    started = row.started if row.started is not None else row.printed
    end = row.ended if row.ended is not None else attempt.ended
    last = row.last_printed if row.last_printed is not None else started
    quiet = None
    if (
        row.outcome != "done"
        and last is not None
        and end - last > max(QUIET_SECONDS, QUIET_SHARE * (attempt.ended - attempt.began))
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
    attempt: Attempt, failure: FirstFailure, tops: dict[int, float], step: float, scale: Scale
) -> FailureMark:
    of_host = [
        tops[row.rank]
        for row in attempt.ranks.values()
        if failure.rank is None and row.host == failure.host and row.rank in tops
    ]
    rows = (min(of_host), max(of_host) - min(of_host) + step) if of_host else None
    return FailureMark(scale(failure.at), _short_text(failure.headline), failure.is_stop, rows)


def _short_text(text: str) -> str:
    """The text without the words that do not fit; the head of the page has all of it."""
    cut = text[: MOST_TEXT + 1].rpartition(" ")[0] or text[:MOST_TEXT]
    return text if len(text) <= MOST_TEXT else f"{cut} …"


def _labels(
    hosts: Mapping[int, str], tops: Mapping[int, float], step: float, failed: Set[int]
) -> list[tuple[float, str, bool]]:
    """A label for each rank in high rows; in low rows for each host where it fits, and for failures."""
    labels = [
        (y + step * (0.7 if step > 12 else 0.9), f"{_short(hosts[rank])} · {rank}", rank in failed)
        for rank, y in tops.items()
        if step > 12 or rank in failed
    ]
    if step > 12:
        return labels
    taken = [y for y, _, _ in labels]
    for host, _, y in _groups(hosts, tops):
        if all(abs(y + 9 - other) >= 11 for other in taken):
            labels.append((y + 9, _short(host), False))
            taken.append(y + 9)
    return labels


def _short(name: str) -> str:
    return name if len(name) <= 15 else f"{name[:7]}…{name[-7:]}"


def _groups(hosts: Mapping[int, str], tops: Mapping[int, float]) -> list[tuple[str, int, float]]:
    """Each host with the number of its rows and the top of the first."""
    groups: dict[str, tuple[int, float]] = {}
    for rank, top in tops.items():
        count, y = groups.get(hosts[rank], (0, top))
        groups[hosts[rank]] = (count + 1, y)
    return [(host, count, y) for host, (count, y) in groups.items()]
