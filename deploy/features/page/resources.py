"""The load of the hosts by their samples: figures and small curves, a row for each host. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...core.text.text import percent, size
from .chart import path_of
from .run_records import RunRecord, number_of, records_of

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
