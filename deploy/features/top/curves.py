"""Curves of loss and throughput, or of the processors and the network of a job without steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from ...core.text.columns import cells
from ...core.text.text import number
from .history import TopHistory
from .lines import ScreenLine, Span, fit, mean, padded, short_percent, short_rate

LEAST_POINTS = 3
# The bits of a braille pattern: two columns of four dots, from the top.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


class Curve(NamedTuple):
    """Values in the order of their time."""

    title: str
    values: tuple[float, ...]
    text: Callable[[float], str]
    """A value with its unit."""
    begin: str
    end: str
    """The labels below its first and last value."""
    from_zero: bool = True
    """Whether the axis begins at zero, not at the least value."""


def curves_of(history: TopHistory) -> list[Curve]:
    """The curves of loss and throughput, else those of the hosts; fewer if there are no figures yet."""
    unit = "samples/s" if history.rate_of_samples else "steps/s"
    losses = [(point.step, point.loss) for point in history.course if point.loss is not None]
    rates = [(point.step, point.rate) for point in history.course if point.rate is not None]
    curves = [
        _over_steps("loss", losses, number, from_zero=False),
        _over_steps("throughput", rates, lambda value: f"{number(value, 3)} {unit}", from_zero=True),
    ]
    shown = [curve for curve in curves if len(curve.values) >= LEAST_POINTS]
    return shown or [curve for curve in _host_curves(history) if len(curve.values) >= LEAST_POINTS]


def _over_steps(
    title: str, points: Sequence[tuple[int | None, float]], text: Callable[[float], str], *, from_zero: bool
) -> Curve:
    steps = [f"step {step}" for step, _ in points if step is not None] or ["", "now"]
    return Curve(title, tuple(value for _, value in points), text, steps[0], steps[-1], from_zero)


def _host_curves(history: TopHistory) -> list[Curve]:
    tracks = [[*track.samples] for track in history.hosts.values() if track.samples]
    longest = max((len(samples) for samples in tracks), default=0)
    # The samples of one turn: the newest of each host, the newest but one of each host, and so on.
    turns = [[samples[-back] for samples in tracks if back <= len(samples)] for back in range(longest, 0, -1)]
    cpu = [mean(sample.cpu for sample in turn) for turn in turns]
    network = [sum((sample.net_in or 0.0) + (sample.net_out or 0.0) for sample in turn) for turn in turns]
    begin = _ago(tracks[0][-1].at - tracks[0][0].at) if tracks else ""
    end = "the end" if history.is_over else "now"
    begin = f"{begin} before {end}" if history.is_over else f"{begin} ago"
    percents = tuple(share for share in cpu if share is not None)
    return [
        Curve("CPU of all hosts", percents, short_percent, begin, end),
        Curve("network of all hosts", tuple(network), short_rate, begin, end),
    ]


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def drawn(curves: Sequence[Curve], width: int, rows: int) -> list[ScreenLine]:
    """The curves side by side, in so many rows."""
    gap = 2
    each = (width - gap * (len(curves) - 1)) // len(curves)
    panels = [_panel(curve, each, rows) for curve in curves]
    blank = Span(" " * gap)
    return [
        ScreenLine(tuple(span for part in parts for span in (*part, blank))[:-1])
        for parts in zip(*panels, strict=True)
    ]


def _panel(curve: Curve, width: int, rows: int) -> list[tuple[Span, ...]]:
    low = 0.0 if curve.from_zero else min(curve.values)
    high = max(curve.values)
    labels = [curve.text(high), *[""] * (rows - 4), curve.text(low) if low < high else ""]
    left = max(map(cells, labels)) + 1
    now = f"{curve.title} {curve.text(curve.values[-1])}"
    extreme = f", lowest {curve.text(low)}" if not curve.from_zero else f", highest {curve.text(high)}"
    plot = _braille(_buckets(curve.values, 2 * (width - left - 1)), low, high, rows - 2)
    below = padded(curve.begin, width - left - 1 - cells(curve.end)) + curve.end
    return [
        (Span(padded(fit(now + extreme, width), width), "heading"),),
        *(
            (Span(f"{padded(label, left - 1, right=True)} │", "dim"), Span(row, "mark"))
            for label, row in zip(labels, plot, strict=True)
        ),
        (Span(f"{' ' * (left + 1)}{below}", "dim"),),
    ]


def _buckets(values: Sequence[float], most: int) -> list[float]:
    """So many values: the means of equal parts, or those on the lines between few values."""
    if len(values) <= most:
        positions = [index * (len(values) - 1) / (most - 1) for index in range(most)]
        return [values[int(at)] + (values[math.ceil(at)] - values[int(at)]) * (at % 1) for at in positions]
    bounds = [index * len(values) // most for index in range(most + 1)]
    return [sum(values[first:last]) / (last - first) for first, last in pairwise(bounds)]


def _braille(values: Sequence[float], low: float, high: float, rows: int) -> list[str]:
    """A line through the values, in dots, of which a character has two by four."""
    most = 4 * rows - 1
    scale = most / (high - low) if high > low else 0.0  # all are equal: in the middle
    heights = [most - round((value - low) * scale) if scale else most // 2 for value in values]
    grid = [[0x2800] * (len(values) // 2) for _ in range(rows)]
    before = heights[0]
    for x, height in enumerate(heights[: 2 * len(grid[0])]):
        step = 1 if height > before else -1
        for y in {height, *range(before + step, height, step)}:
            grid[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
        before = height
    return ["".join(map(chr, row)) for row in grid]
