"""The benchmark of links as text. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ...core.errors import lines_of
from ...core.text.terminal import harmless
from ...core.text.text import count, number, table
from .link_speeds import QUANTITIES, Links, Quantity, Slow

MOST_COLUMNS = 16
"""Hosts of a matrix in a terminal; of more hosts, the rows are summed up."""
MOST_NAMED = 20
HEALTHY = "no link is slow compared with the others of its row and column"


def as_text(links: Links, slow: Sequence[Slow], problems: Mapping[str, str]) -> str:
    """The matrices, then the slow links and hosts."""
    lines = [title_of(links)]
    for quantity in QUANTITIES:
        lines += ["", *matrix(links, quantity)]
    healthy = HEALTHY if len(links.hosts) > 2 else ""
    lines += conclusions([describe(each) for each in slow], problems, healthy=healthy)
    return "\n".join(map(harmless, lines)) + "\n"


def title_of(links: Links) -> str:
    """`links of 3 hosts: gloo on cpu, 2026-11-25 17:54 UTC`."""
    return f"links of {count(len(links.hosts), 'host')}: {links.backend} on {links.device}, {links.made}"


def conclusions(slow: Sequence[str], problems: Mapping[str, str], *, healthy: str) -> list[str]:
    """The slow figures, and problems. `healthy`: for no slow ones."""
    named = [f"SLOW    {text}" for text in slow] or ([healthy] if healthy else [])
    lost = [f"ERROR   {line}" for line in lines_of(problems.items())]
    return [line for part in (named, lost) if part for line in ("", *_first(part))]


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
