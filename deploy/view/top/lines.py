"""Lines of the screen: rows of spans, each a text and the name of a style; who draws decides its look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...console.terminal import harmless
from .judge import Note

SORTS = ("name", "cpu", "memory", "gpu", "trouble")
SPARK = 8
NAME = 12


class Span(NamedTuple):
    """A part of a line; `style`: plain, dim, title, bar, spark, odd or bad."""

    text: str
    style: str = "plain"


class Line(NamedTuple):
    """A line of the screen. `key`: the host or `rank N` that it is about; empty for others."""

    spans: tuple[Span, ...]
    key: str = ""

    def __str__(self) -> str:
        return "".join(span.text for span in self.spans).rstrip()


@dataclass(frozen=True)
class View:
    """What the user wants to see."""

    ranks: bool = False
    """The ranks, not the hosts."""
    sort: str = "name"
    wanted: str = ""
    """Only hosts and ranks whose name, note or last line has this."""
    chosen: str = ""
    """Only this host, or `rank N`, in full."""


def noted(note: Note | None) -> Sequence[Span]:
    """What is noted, as spans."""
    return [Span(harmless(note.text), style_of(note))] if note else []


def style_of(note: Note | None, usual: str = "plain") -> str:
    """The style of what a note is about."""
    return usual if note is None else "bad" if note.bad else "odd"


def has(wanted: str, text: str, note: Note | None) -> bool:
    """Whether a text, or the note beside it, has what the filter wants."""
    return wanted.lower() in f"{text} {note.text if note else ''}".lower()
