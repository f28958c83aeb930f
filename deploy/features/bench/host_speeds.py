"""The figures of each host alone, and which host is slow compared with the others. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from ...core.decode import AtMost, Like, from_json
from ...core.text.text import count, number, table
from .link_speeds import MOST_HOSTS, Name
from .links_text import conclusions
from .printed_values import Rate, values

MOST_FIGURES = 200
SLOW = 0.8
"""A host is slow below this part of the median of the others."""
SLOWER = 0.8
"""The same, of its figure in an earlier run."""


@dataclass(frozen=True)
class FigureLine:
    """A figure that a host prints; more is better."""

    name: Annotated[str, AtMost(40), Like(r"[A-Za-z0-9/_ ]+")]
    value: Rate
    unit: Literal["GB/s", "GFLOP/s"]


FiguresOfHost = Annotated[tuple[FigureLine, ...], AtMost(MOST_FIGURES)]


@dataclass(frozen=True)
class Speeds:
    """The figures of each host in one run, in the order of `hosts`."""

    job: Name
    made: Annotated[str, AtMost(40)]
    hosts: Annotated[tuple[Name, ...], AtMost(MOST_HOSTS)]
    figures: Annotated[tuple[FiguresOfHost, ...], AtMost(MOST_HOSTS)]

    def rows(self) -> dict[tuple[str, str], dict[str, float]]:
        """For each figure, by name and unit, its value on each host that has it."""
        rows: dict[tuple[str, str], dict[str, float]] = {}
        for host, figures in zip(self.hosts, self.figures, strict=True):
            for each in figures:
                rows.setdefault((each.name, each.unit), {})[host] = each.value
        return rows

    def as_json(self) -> dict[str, Any]:
        """Plain values, which `of_json` reads."""
        return asdict(self)

    @staticmethod
    def of_json(value: Any) -> Speeds:
        """Reads the values of `as_json`. Raises one of MALFORMED for any others."""
        speeds: Speeds = from_json(Speeds, value)
        if len(speeds.hosts) != len(speeds.figures):
            raise ValueError("hosts and figures differ in number")
        return speeds


@dataclass(frozen=True)
class SlowHost:
    """A figure of a host, and the median of the others or its own in an earlier run."""

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


def slower_hosts(now: Speeds, before: Speeds) -> tuple[SlowHost, ...]:
    """The figures of hosts that are less than their own in an earlier run."""
    old = before.rows()
    return tuple(
        SlowHost(host, name, unit, value, earlier)
        for (name, unit), row in now.rows().items()
        for host, value in row.items()
        if (earlier := old.get((name, unit), {}).get(host)) is not None and value < SLOWER * earlier
    )


def as_text(
    speeds: Speeds,
    slow: Sequence[SlowHost],
    worse: Sequence[SlowHost] | None,
    *,
    baseline: str,
    problems: Mapping[str, str],
) -> str:
    """A line for each figure, with the median and the least host; then the slow hosts."""
    lines = [f"{count(len(speeds.hosts), 'host')}, {speeds.made}", "", *figures_table(speeds)]
    lines += conclusions(
        [describe(each, "the others have") for each in slow],
        None if worse is None else [describe(each, "it had") for each in worse],
        problems,
        baseline=baseline,
        healthy="no host is slow compared with the others" if len(speeds.hosts) > 1 else "",
    )
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


def describe(slow: SlowHost, others: str) -> str:
    """`node3: disk write 0.11 GB/s; the others have 0.9 GB/s`."""
    value, usual = (f"{number(value, 3)} {slow.unit}" for value in (slow.value, slow.usual))
    return f"{slow.host}: {slow.name} {value}; {others} {usual}"
