"""The benchmark of links as text, and as a page with heat maps: one HTML file that loads nothing. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from html import escape

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


BOUNDS = (0.25, 0.5, 0.7, 0.9, 1.1, 1.5)
"""The bounds between colours, as parts of the median speed."""
COLOURS = (
    ("below a quarter", "#7f1d1d", "#fff"),
    ("below half", "#c4322b", "#fff"),
    ("below 70 %", "#e58b52", "#14171d"),
    ("below 90 %", "#f3cf8f", "#14171d"),
    ("the median", "#c9dcec", "#14171d"),
    ("above 110 %", "#86b4dc", "#14171d"),
    ("above 150 %", "#2f6db0", "#fff"),
)
"""The name of each colour, the colour, and that of the figures on it. The same in light and dark."""
USUAL = 4
"""The colour of cells without a class, which keeps the page of many hosts small."""
HEAD = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ margin: 28px; font: 15px/1.5 system-ui, sans-serif }}
h1 {{ font-size: 22px }}
table {{ display: inline-block; max-width: 100%; overflow-x: auto; margin-right: 48px; border-spacing: 1px }}
caption {{ text-align: left; font-weight: 600; white-space: nowrap }}
th {{ font-weight: 400; text-align: right; padding: 0 6px }}
td {{ min-width: 12px; height: 12px; text-align: center }}
table.figures td {{ min-width: 56px; height: 48px }}
span {{ padding: 2px 8px }}
td, {rules}
td.none {{ background: none }}
</style>
"""


def links_page(links: Links, slow: Sequence[Slow]) -> str:
    """The page of a benchmark: the slow links and hosts, and a map of each quantity."""
    healthy = HEALTHY if len(links.hosts) > 2 else ""
    found = conclusions([describe(each) for each in slow], {}, healthy=healthy)
    rules = "\n".join(
        f".c{step} {{ background: {back}; color: {ink} }}"
        for step, (_, back, ink) in sorted(enumerate(COLOURS), key=lambda item: item[0] != USUAL)
    )
    legend = " ".join(f'<span class="c{step}">{name}</span>' for step, (name, _, _) in enumerate(COLOURS))
    return "\n".join(
        [
            HEAD.format(title=_html(title_of(links)), rules=rules),
            f"<h1>{_html(title_of(links))}</h1>",
            *(f"<div>{_html(line)}</div>" for line in found),
            "<p>From the host of the row to that of the column, in the same order.",
            f"Colours are the speed divided by the median:</p>\n<p>{legend}</p>",
            *(line for quantity in QUANTITIES if links.links for line in _map(links, quantity)),
        ]
    )


def _map(links: Links, quantity: Quantity) -> Iterator[str]:
    """A table coloured by speed. Of many hosts, it has neither figures nor the names of columns."""
    measured, (unit, scale) = links.of(quantity), unit_of(links, quantity)
    median, few = statistics.median(measured.values()), len(links.hosts) <= MOST_COLUMNS

    def cell(pair: tuple[str, str]) -> str:
        if (value := measured.get(pair)) is None:
            return "<td class=none>"
        step = bisect_right(BOUNDS, value / median if quantity == "bandwidth" else median / value)
        return ("<td>" if step == USUAL else f"<td class=c{step}>") + (
            number(value * scale, 3) if few else ""
        )

    yield f"<table{' class=figures' if few else ''}>"
    yield f"<caption>{quantity}, {unit}; median {number(median * scale, 3)}</caption>"
    if few:
        yield "<tr><th>" + "".join(f"<th scope=col>{_html(name)}" for name in links.hosts)
    for a in links.hosts:
        yield f"<tr><th scope=row>{_html(a)}" + "".join(cell((a, b)) for b in links.hosts)
    yield "</table>"


def _html(text: str) -> str:
    """A host may have sent it; HTML forbids control characters."""
    return escape(harmless(text))
