"""Charts of metrics and resources as values: paths and ticks in the units of an SVG's view box. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...core.text.text import number, percent, size
from .run_records import RunRecord, number_of, records_of

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


AXES = ("step", "epoch", "iteration", "time")
"""Keys for the horizontal axis; the first that every record has is used."""
MOST_CHARTS = 40


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
    first = next((rank for record in records if (rank := record.get("rank")) is not None), None)
    drawn = [record for record in records if record.get("rank") == first]
    axis = _axis_of(drawn)
    keys = _keys_of(drawn)
    charts = [
        made
        for key in keys[:MOST_CHARTS]
        if (made := chart(key, axis, _points_of(drawn, key, axis))) is not None
    ]
    return charts, max(0, len(keys) - MOST_CHARTS)


SPARK_WIDTH, SPARK_HEIGHT = 110, 22
POINTS_IN_ALL = 24_000
"""Points of all small curves together, which bounds the size of the page."""


@dataclass(frozen=True)
class Cell:
    """One kind of figure of a host: mean and peak as text, and its course as a path."""

    mean: str
    peak: str
    path: str


@dataclass(frozen=True)
class Resources:
    """A table: the kinds of its columns, and a row of cells for each host; None without a measurement."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    points: int
    """Points that each small curve has at most."""


@dataclass(frozen=True)
class _Kind:
    name: str
    value: Callable[[RunRecord], float | None]
    text: Callable[[float], str]
    top: float | None = None
    """The upper end of the scale; None for the peak of all hosts."""


@dataclass(frozen=True)
class _Times:
    """The time of all curves: its beginning, its length in seconds, and its number of points."""

    began: float
    span: float
    points: int


def _field(name: str) -> Callable[[RunRecord], float | None]:
    return lambda sample: number_of(sample.get(name))


def _share_of(used: str, total: str) -> Callable[[RunRecord], float | None]:
    def share(sample: RunRecord) -> float | None:
        part, whole = number_of(sample.get(used)), number_of(sample.get(total))
        return part / whole if part is not None and whole else None

    return share


def _of_gpus(name: str, join: Callable[[list[float]], float]) -> Callable[[RunRecord], float | None]:
    def value(sample: RunRecord) -> float | None:
        values = [number_of(gpu.get(name)) for gpu in records_of(sample.get("gpus"))]
        numbers = [number for number in values if number is not None]
        return join(numbers) if numbers else None

    return value


def _rate(value: float) -> str:
    return f"{size(value)}/s"


KINDS = (
    _Kind("CPU", _field("cpu"), percent, 1.0),
    _Kind("memory", _share_of("memory", "memory_total"), percent, 1.0),
    _Kind("GPU", _of_gpus("utilisation", lambda values: sum(values) / len(values)), percent, 1.0),
    _Kind("GPU memory", _of_gpus("memory", sum), size),
    _Kind("network in", _field("net_in"), _rate),
    _Kind("network out", _field("net_out"), _rate),
    _Kind("disk read", _field("disk_read"), _rate),
    _Kind("disk write", _field("disk_write"), _rate),
    _Kind("swap", _field("swap"), size),
    _Kind("/dev/shm", _share_of("shm", "shm_total"), percent, 1.0),  # noqa: S108
    _Kind("temperature", _field("temperature"), lambda value: f"{value:.0f} °C", 100.0),
)
OPTIONAL = {"swap", "/dev/shm", "disk read", "temperature"}  # noqa: S108
"""Columns that are left out where every value is 0."""


def resources(samples: Sequence[RunRecord], hosts: Sequence[str]) -> Resources | None:
    """The table of all hosts that were sampled, in the job's order; None without samples."""
    by_host: dict[str, list[tuple[float, RunRecord]]] = {}
    for sample in samples:
        at, host = number_of(sample.get("at")), sample.get("host")
        if at is not None and isinstance(host, str):
            by_host.setdefault(host, []).append((at, sample))
    names = [name for name in hosts if name in by_host] + sorted(by_host.keys() - set(hosts))
    if not names:
        return None
    times = [at for of_host in by_host.values() for at, _ in of_host]
    began, span = min(times), max(max(times) - min(times), 1e-9)
    columns = []
    for kind in KINDS:
        measured = {name: _measured(by_host[name], kind) for name in names}
        peak = max((value for points in measured.values() for _, value in points), default=0.0)
        if any(measured.values()) and (peak or kind.name not in OPTIONAL):
            columns.append((kind, measured, kind.top or peak or 1.0))
    points = max(12, min(100, POINTS_IN_ALL // max(1, len(names) * len(columns))))
    rows = tuple(
        (
            name,
            tuple(
                _cell(measured[name], kind.text, top, _Times(began, span, points))
                for kind, measured, top in columns
            ),
        )
        for name in names
    )
    return Resources(tuple(kind.name for kind, _, _ in columns), rows, points)


def _measured(samples: Sequence[tuple[float, RunRecord]], kind: _Kind) -> list[tuple[float, float]]:
    return [
        (at, value)
        for at, sample in samples
        if (value := kind.value(sample)) is not None and math.isfinite(value)
    ]


def _cell(
    measured: Sequence[tuple[float, float]], text: Callable[[float], str], top: float, times: _Times
) -> Cell | None:
    if not measured:
        return None
    values = [value for _, value in measured]
    buckets: dict[int, list[float]] = {}
    for at, value in measured:
        bucket = int((at - times.began) / times.span * times.points)
        buckets.setdefault(min(times.points - 1, bucket), []).append(value)
    drawn = [
        (
            round((bucket + 0.5) / times.points * SPARK_WIDTH, 1),
            round(1 + (1 - min(max(sum(group) / len(group) / top, 0.0), 1.0)) * (SPARK_HEIGHT - 2), 1),
        )
        for bucket, group in sorted(buckets.items())
    ]
    return Cell(text(sum(values) / len(values)), text(max(values)), path_of(drawn))
