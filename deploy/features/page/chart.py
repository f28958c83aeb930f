"""Line charts as values: paths and ticks in the units of an SVG's view box. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.text.text import number

Point = tuple[float, float]

WIDTH, HEIGHT = 360, 150
LEFT, RIGHT, TOP, BOTTOM = 52, 8, 8, 20
MOST_POINTS = 240


@dataclass(frozen=True)
class Chart:
    """One chart: its curve, and the figures of the table behind it. A tick is a coordinate and a text."""

    title: str
    x_name: str
    path: str
    first: str
    last: str
    least: str
    most: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    dot: Point | None = None
    """The position of a single point, which a path would not show."""

    @property
    def summary(self) -> str:
        """The chart in a sentence, for a screen reader."""
        course = f"from {self.first} to {self.last}, lowest {self.least}, highest {self.most}"
        return f"{self.title} over {self.x_name}: {course}"


def chart(title: str, x_name: str, points: Sequence[Point]) -> Chart | None:
    """The chart of some points; None without a finite one."""
    finite = [point for point in points if all(map(math.isfinite, point))]
    if not finite:
        return None
    values, whole = [y for _, y in finite], all(float(x).is_integer() for x, _ in finite)
    x_low, x_high = _range([x for x, _ in finite], 0.0)
    y_low, y_high = _range(values, 0.06)
    scale = _Scale(x_low, x_high, y_low, y_high)
    drawn = [(scale.x(x), scale.y(y)) for x, y in thinned(finite, MOST_POINTS)]
    return Chart(
        title=title,
        x_name=x_name,
        path=path_of(drawn),
        first=number(values[0]),
        last=number(values[-1]),
        least=number(min(values)),
        most=number(max(values)),
        x_ticks=tuple((scale.x(tick), number(tick)) for tick in ticks(x_low, x_high, 4, whole=whole)),
        y_ticks=tuple((scale.y(tick), number(tick)) for tick in ticks(y_low, y_high, 3)),
        dot=drawn[0] if len(drawn) == 1 else None,
    )


@dataclass(frozen=True)
class _Scale:
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        share = (value - self.x_low) / (self.x_high - self.x_low)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def path_of(points: Sequence[Point]) -> str:
    """The `d` of an SVG path through these points."""
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points) if points else ""


def thinned(points: Sequence[Point], most: int) -> Sequence[Point]:
    """At most `most` points, with the least and the greatest of each part, so that no peak is lost."""
    if len(points) <= most:
        return points
    parts = most // 2
    kept: list[Point] = []
    for part in range(parts):
        group = points[len(points) * part // parts : len(points) * (part + 1) // parts]
        ends = {min(group, key=lambda point: point[1]), max(group, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


def _range(values: Sequence[float], margin: float) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        half = abs(low) * 0.5 or 0.5
        return low - half, high + half
    return low - margin * (high - low), high + margin * (high - low)


def ticks(low: float, high: float, about: int, *, whole: bool = False) -> list[float]:
    """Round numbers between two bounds, `about` of them. `whole`: integers, such as the numbers of steps."""
    raw = (high - low) / about
    if not raw > 0 or not math.isfinite(raw):
        return []
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [power * factor for factor in (1, 2, 2.5, 5, 10)]
    step = next((each for each in steps if each >= raw * 0.999 and not (whole and each % 1)), 1.0)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [number * step for number in range(first, min(last, first + 4 * about) + 1)]
