"""The heat maps of a benchmark of links: one HTML file that loads nothing. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from html import escape

from ...core.text.terminal import harmless
from ...core.text.text import number
from .link_speeds import QUANTITIES, Links, Quantity, Slow
from .links_text import HEALTHY, MOST_COLUMNS, conclusions, describe, title_of, unit_of

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
