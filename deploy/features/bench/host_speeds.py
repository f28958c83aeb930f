"""The figures of each host alone, and which host is slow compared with the others. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from ...core.decode import AtMost, Like
from ...core.text.text import count, number, table
from .links_text import conclusions
from .printed_values import Rate, values

MOST_FIGURES = 200
SLOW = 0.8
"""A host is slow below this part of the median of the others."""


@dataclass(frozen=True)
class FigureLine:
    """A figure that a host prints; more is better."""

    name: Annotated[str, AtMost(40), Like(r"[A-Za-z0-9/_ ]+")]
    value: Rate
    unit: Literal["GB/s", "GFLOP/s"]


@dataclass(frozen=True)
class Speeds:
    """The figures of each host in one run, in the order of `hosts`."""

    job: str
    made: str
    hosts: tuple[str, ...]
    figures: tuple[tuple[FigureLine, ...], ...]

    def rows(self) -> dict[tuple[str, str], dict[str, float]]:
        """For each figure, by name and unit, its value on each host that has it."""
        rows: dict[tuple[str, str], dict[str, float]] = {}
        for host, figures in zip(self.hosts, self.figures, strict=True):
            for each in figures:
                rows.setdefault((each.name, each.unit), {})[host] = each.value
        return rows


@dataclass(frozen=True)
class SlowHost:
    """A figure of a host, and the median of the others."""

    host: str
    name: str
    unit: str
    value: float
    usual: float


def read(
    job: str, made: str, hosts: Sequence[str], printed: Mapping[int, str]
) -> tuple[Speeds, dict[str, str]]:
    """The figures of a job with a rank on each host, and the problem of each host without valid ones."""
    figures, problems = [], {}
    for rank, host in enumerate(hosts):
        lines, problem = values(printed.get(rank, ""), "host", FigureLine, MOST_FIGURES)
        figures.append(tuple(lines))
        if problem or not lines:
            problems[host] = problem or "it printed no figure"
    return Speeds(job, made, tuple(hosts), tuple(figures)), problems


def slow_hosts(speeds: Speeds) -> tuple[SlowHost, ...]:
    """The figures that are slow compared with the median of the other hosts."""
    slow = []
    for (name, unit), row in speeds.rows().items():
        for host, value in row.items():
            others = [other for each, other in row.items() if each != host]
            if others and value < SLOW * (usual := statistics.median(others)):
                slow.append(SlowHost(host, name, unit, value, usual))
    return tuple(slow)


def as_text(speeds: Speeds, slow: Sequence[SlowHost], problems: Mapping[str, str]) -> str:
    """A line for each figure, with the median and the least host; then the slow hosts."""
    lines = [f"{count(len(speeds.hosts), 'host')}, {speeds.made}", "", *figures_table(speeds)]
    healthy = "no host is slow compared with the others" if len(speeds.hosts) > 1 else ""
    lines += conclusions([describe(each) for each in slow], problems, healthy=healthy)
    return "\n".join(lines) + "\n"


def figures_table(speeds: Speeds) -> list[str]:
    """A line for each figure: the median, and the hosts with the least and the most."""
    rows = [("", "median", "least", "on", "most", "on", "unit")]
    for (name, unit), row in speeds.rows().items():
        ordered = sorted(row.items(), key=lambda item: item[1])
        (least, low), (most, high) = ordered[0], ordered[-1]
        median, lowest, highest = (number(value, 3) for value in (statistics.median(row.values()), low, high))
        rows.append((name, median, lowest, least, highest, most, unit))
    return table(rows, left=1)


def describe(slow: SlowHost) -> str:
    """`node3: disk write 0.11 GB/s; the others have 0.9 GB/s`."""
    value, usual = (f"{number(value, 3)} {slow.unit}" for value in (slow.value, slow.usual))
    return f"{slow.host}: {slow.name} {value}; the others have {usual}"
