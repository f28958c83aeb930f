"""Lines of the screen: spans of text with the name of a style; bars, sparklines, short numbers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...console.terminal import harmless
from .judge import Note

SORTS = ("trouble", "name", "cpu", "memory", "gpu")
SPARK = 8
NAME = 12


class Span(NamedTuple):
    """A part of a line; `style`: plain, dim, title, bar, spark, odd or bad."""

    text: str
    style: str = "plain"


class ScreenLine(NamedTuple):
    """A line of the screen. `key`: its host or `rank N`; empty for other lines."""

    spans: tuple[Span, ...]
    key: str = ""

    def __str__(self) -> str:
        return "".join(span.text for span in self.spans).rstrip()


@dataclass(frozen=True)
class View:
    """The user's choice of lines."""

    ranks: bool = False
    """The ranks, not the hosts."""
    sort: str = "trouble"
    wanted: str = ""
    """Only hosts and ranks whose name, note or last line has this."""
    chosen: str = ""
    """Only this host, or `rank N`, in full."""


def noted(note: Note | None) -> Sequence[Span]:
    """A note as spans."""
    return [Span(harmless(note.text), style_of(note))] if note else []


def style_of(note: Note | None, usual: str = "plain") -> str:
    """The style of a line with this note."""
    return usual if note is None else "bad" if note.bad else "odd"


def has(wanted: str, text: str, note: Note | None) -> bool:
    """Whether a text, or the note beside it, contains the filter's text."""
    return wanted.lower() in f"{text} {note.text if note else ''}".lower()


EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"
UNITS = ("", "K", "M", "G", "T", "P")


def bar(share: float | None, width: int) -> str:
    """A bar of `width` characters for a share from 0 to 1; blank for None."""
    if share is None:
        return " " * width
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    whole, part = divmod(eighths, 8)
    return (EIGHTHS[8] * whole + (EIGHTHS[part] if part else "")).ljust(width)


def spark(values: Sequence[float | None], width: int, most: float) -> str:
    """The last values as a line of levels from 0 to `most`; a blank for None."""
    scale = most or 1.0
    marks = [
        " " if value is None else LEVELS[min(7, max(0, int(value / scale * 8)))] for value in values[-width:]
    ]
    return "".join(marks).rjust(width)


def short_size(number: float | None) -> str:
    """At most four characters for a number of bytes: `512`, `1.5K`, `70G`; empty for None."""
    if number is None:
        return ""
    value = float(number)
    for unit in UNITS:
        if value < 1000 or unit == UNITS[-1]:
            break
        value /= 1024
    return f"{value:.1f}{unit}" if unit and value < 9.95 else f"{value:.0f}{unit}"


def short_percent(share: float | None) -> str:
    """` 83%`; blank for None."""
    return "    " if share is None else f"{round(100 * share):3d}%"
