"""The page of a benchmark of links as a value: heat maps, and what is slow. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...bench.links import Links
from ...bench.links_text import QUANTITIES, describe
from ...bench.outliers import outliers
from ...console.text import count
from .heat import NAMES, HeatMap, heat_map

MOST_NAMED = 40


@dataclass(frozen=True)
class Run:
    """One benchmark of links, as a section of a page."""

    title: str
    made: str
    maps: tuple[HeatMap, ...]
    slow: tuple[str, ...]
    more: int
    """How many further links are slow."""
    scale: tuple[str, ...] = NAMES


@dataclass(frozen=True)
class LinksPage:
    """What the page of links shows."""

    title: str
    tone: str
    runs: tuple[Run, ...]


def section(links: Links) -> Run:
    """The section of one benchmark."""
    slow = [describe(each) for quantity in QUANTITIES for each in outliers(links, quantity)]
    maps = [made for quantity in QUANTITIES if (made := heat_map(links, quantity))]
    title = f"{links.backend} on {links.device}, {count(len(links.hosts), 'host')}"
    more = max(0, len(slow) - MOST_NAMED)
    return Run(title, f"{links.made}, job {links.job}", tuple(maps), tuple(slow[:MOST_NAMED]), more)


def links_page(found: Sequence[Links]) -> LinksPage:
    """The page of one or several benchmarks."""
    runs = tuple(map(section, found))
    number = sum(len(run.slow) + run.more for run in runs)
    title = f"slow links and hosts: {number}" if number else "no link is slow beside the others"
    return LinksPage(title, "bad" if number else "good", runs)
