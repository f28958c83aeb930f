"""The benchmark of links as text and tables. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

from ...core.errors import lines_of
from ...core.text.terminal import harmless
from ...core.text.text import count, number, table
from .link_speeds import QUANTITIES, Links, Quantity, Slow, outliers, worst_first

MOST_COLUMNS = 16
"""Hosts of a matrix in a terminal; of more hosts, the rows are summed up."""
MOST_NAMED = 20


def as_text(
    links: Links,
    slow: Sequence[Slow],
    worse: Sequence[Slow] | None,
    *,
    baseline: str = "",
    problems: Mapping[str, str] | None = None,
) -> str:
    """The matrices, then the slow links and hosts, then those slower than in `baseline` (`worse`)."""
    lines = [f"links of {count(len(links.hosts), 'host')}: {links.backend} on {links.device}, {links.made}"]
    for quantity in QUANTITIES:
        lines += ["", *matrix(links, quantity)]
    lines += conclusions(
        [describe(each) for each in slow],
        None if worse is None else [describe_slower(each) for each in worse],
        problems or {},
        baseline=baseline,
        healthy="no link is slow compared with the others of its row and column"
        if len(links.hosts) > 2
        else "",
    )
    return "\n".join(map(harmless, lines)) + "\n"


def conclusions(
    slow: Sequence[str],
    worse: Sequence[str] | None,
    problems: Mapping[str, str],
    *,
    baseline: str,
    healthy: str,
) -> list[str]:
    """The slow figures, those slower than in `baseline`, and problems. `healthy`: for no slow ones."""
    named = [f"SLOW    {text}" for text in slow] or ([healthy] if healthy else [])
    compared = [f"SLOWER  {text}" for text in worse or ()]
    if worse is not None:
        compared = [f"slower than in {baseline}:", *compared] if worse else [f"not slower than in {baseline}"]
    lost = [f"ERROR   {line}" for line in lines_of(problems.items())]
    return [line for part in (named, compared, lost) if part for line in ("", *_first(part))]


def _first(lines: Sequence[str]) -> list[str]:
    more = len(lines) - MOST_NAMED
    return [*lines[:MOST_NAMED], *([f"        and {more} more, with --json"] if more > 0 else [])]


def matrix(links: Links, quantity: Quantity) -> list[str]:
    """The figures of every pair, a row for each host at which links begin; of many hosts, its summary."""
    unit, scale = unit_of(links, quantity)
    figures = {pair: value * scale for pair, value in links.of(quantity).items()}
    if len(links.hosts) > MOST_COLUMNS:
        title, head = f"{quantity}, {unit}: links from each host", ["median", "least", "most"]
        rows = {a: _summed([figures[a, b] for b in links.hosts if (a, b) in figures]) for a in links.hosts}
    else:
        title, head = f"{quantity}, {unit}: from the host of the row to that of the column", [*links.hosts]
        rows = {
            a: [number(figures[a, b], 3) if (a, b) in figures else "-" for b in links.hosts]
            for a in links.hosts
        }
    return [title, *table([("from", *head), *((a, *row) for a, row in rows.items())], left=1)]


def _summed(values: Sequence[float]) -> list[str]:
    if not values:
        return ["-", "-", "-"]
    return [number(value, 3) for value in (statistics.median(values), min(values), max(values))]


def unit_of(links: Links, quantity: Quantity) -> tuple[str, float]:
    """The unit of a run, and the factor from SI values to it."""
    if quantity == "latency":
        return "µs", 1e6
    fastest = max((link.bytes_per_s for link in links.links), default=0.0)
    return ("Gbit/s", 8e-9) if fastest * 8 >= 1e9 else ("Mbit/s", 8e-6)


def amount(value: float, quantity: Quantity) -> str:
    """`95.7 Mbit/s`, `9.41 Gbit/s`, `31 µs`."""
    if quantity == "latency":
        return f"{number(value * 1e6, 3)} µs"
    bits = value * 8
    return f"{number(bits / 1e9, 3)} Gbit/s" if bits >= 1e9 else f"{number(bits / 1e6, 3)} Mbit/s"


def describe(slow: Slow) -> str:
    """`node1 -> node2: 95.7 Mbit/s; the others of its row and column: 9.41 Gbit/s`."""
    value, usual = amount(slow.value, slow.quantity), amount(slow.usual, slow.quantity)
    texts = {
        "link": f"{slow.source} -> {slow.target}: {value}; the others of its row and column: {usual}",
        "from": f"{slow.source}: links from it, median {value}; those between other hosts: {usual}",
        "to": f"{slow.target}: links to it, median {value}; those between other hosts: {usual}",
        "host": f"{slow.source}: links from it and to it, median {value}; those between other hosts: {usual}",
    }
    return texts[slow.where]


def describe_slower(slow: Slow) -> str:
    """`node1 -> node2: 95.7 Mbit/s, it was 9.41 Gbit/s`."""
    value, before = amount(slow.value, slow.quantity), amount(slow.usual, slow.quantity)
    return f"{slow.source} -> {slow.target}: {value}, it was {before}"


STEPS = (0.25, 0.5, 0.7, 0.9, 1.1, 1.5)
"""The bounds between colours, as parts of the median speed."""
NAMES = (
    *("below a quarter", "below half", "below 70 %", "below 90 %"),
    *("the median", "above 110 %", "above 150 %"),
)
SQUARE, LARGE, LABELS, TOP = 18, 46, 110, 26
MOST_LABELS = 64
"""Hosts of a map whose rows have names; the map of more hosts has the names of some."""
MOST_FIGURES = 12
"""Hosts of a map with a figure in each square."""


@dataclass(frozen=True)
class Shade:
    """All squares of one colour, 0 (slow) to 6 (fast)."""

    step: int
    path: str


@dataclass(frozen=True)
class Label:
    """A text of the map, at a position in the view box."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Figure(Label):
    """The figure of a square. `step`: the colour of the square, on which it must be legible."""

    step: int


@dataclass(frozen=True)
class HeatMap:
    """The map of one quantity. `summary`: the map in a sentence, for a screen reader."""

    title: str
    width: float
    height: float
    shades: tuple[Shade, ...]
    rows: tuple[Label, ...]
    columns: tuple[Label, ...]
    figures: tuple[Figure, ...]
    summary: str


def heat_map(links: Links, quantity: Quantity) -> HeatMap | None:
    """The map of bandwidth or latency; None if no link was measured."""
    if not links.links:
        return None
    grid = _grid(links, quantity)
    hosts, few = links.hosts, len(links.hosts) <= MOST_FIGURES
    every = -(-len(hosts) // MOST_LABELS)
    shown = [(number, name) for number, name in enumerate(hosts) if number % every == 0]
    size = LARGE if few else SQUARE
    return HeatMap(
        title=f"{quantity}, {unit_of(links, quantity)[0]}",
        width=LABELS + size * len(hosts),
        height=TOP + size * len(hosts),
        shades=_shades(grid, size),
        rows=tuple(Label(LABELS - 6, _middle(TOP, size, n) + 3.5, name) for n, name in shown),
        columns=tuple(Label(_middle(LABELS, size, n), TOP - 8, name) for n, name in shown) if few else (),
        figures=tuple(_figures(links, quantity, grid, size)) if few else (),
        summary=_summary(links, quantity),
    )


def _middle(start: float, size: int, index: int) -> float:
    return start + size * (index + 0.5)


def _grid(links: Links, quantity: Quantity) -> list[list[int]]:
    """The colour of each square, row by row; -1 where nothing was measured."""
    measured = links.of(quantity)
    median = statistics.median(measured.values())

    def shade(pair: tuple[str, str]) -> int:
        value = measured.get(pair)
        if value is None:
            return -1
        return bisect_right(STEPS, value / median if quantity == "bandwidth" else median / value)

    return [[shade((a, b)) for b in links.hosts] for a in links.hosts]


def _shades(grid: Sequence[Sequence[int]], size: int) -> tuple[Shade, ...]:
    paths: dict[int, list[str]] = {}
    for index, row in enumerate(grid):
        start, top = LABELS, TOP + index * size
        for step, run in groupby(row):
            width = len([*run]) * size
            if step >= 0:
                paths.setdefault(step, []).append(f"M{start} {top}h{width}v{size}h-{width}z")
            start += width
    return tuple(Shade(step, "".join(paths[step])) for step in sorted(paths))


def _figures(links: Links, quantity: Quantity, grid: Sequence[Sequence[int]], size: int) -> Iterator[Figure]:
    indexes = {name: number for number, name in enumerate(links.hosts)}
    _, scale = unit_of(links, quantity)
    for (a, b), value in links.of(quantity).items():
        row, column = indexes[a], indexes[b]
        x, y = _middle(LABELS, size, column), _middle(TOP, size, row) + 3.5
        yield Figure(x, y, number(value * scale, 3), grid[row][column])


def _summary(links: Links, quantity: Quantity) -> str:
    unit, scale = unit_of(links, quantity)
    values = {pair: value * scale for pair, value in links.of(quantity).items()}
    (low, least), (high, most) = (pick(values.items(), key=lambda item: item[1]) for pick in (min, max))
    median = statistics.median(values.values())
    return (
        f"{quantity} of {len(values)} links between {len(links.hosts)} hosts: "
        f"median {number(median, 3)} {unit}, "
        f"from {number(least, 3)} ({low[0]} to {low[1]}) to {number(most, 3)} ({high[0]} to {high[1]})"
    )


MOST_ON_PAGE = 40


@dataclass(frozen=True)
class LinksPage:
    """The content of the page of links."""

    title: str
    tone: str
    measured: str
    """What was measured, when, and by which job."""
    maps: tuple[HeatMap, ...]
    slow: tuple[str, ...]
    more: int
    """How many further links are slow."""
    scale: tuple[str, ...] = NAMES


LINKS_PAGE = Path(__file__).with_name("links.html")


def links_page(links: Links) -> LinksPage:
    """The page of a benchmark."""
    slow = [describe(each) for each in worst_first(partial(outliers, links))]
    where = f"{links.backend} on {links.device}, {count(len(links.hosts), 'host')}"
    return LinksPage(
        title=f"slow links and hosts: {len(slow)}" if slow else "no link is slow compared with the others",
        tone="bad" if slow else "good",
        measured=f"{where}; {links.made}, job {links.job}",
        maps=tuple(made for quantity in QUANTITIES if (made := heat_map(links, quantity))),
        slow=tuple(slow[:MOST_ON_PAGE]),
        more=max(0, len(slow) - MOST_ON_PAGE),
    )
