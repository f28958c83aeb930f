"""Lines of the screen: spans of text with the name of a style; bars, sparklines, short numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...core.text.columns import cells, cut
from ...core.text.terminal import harmless
from .notes import Note

SORTS = ("trouble", "name", "cpu", "memory", "gpu")


class Span(NamedTuple):
    """A part of a line; `style`: plain, dim, title, heading, focus, mark, odd or bad."""

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
    """The keys act on the ranks, not on the hosts."""
    sort: str = "trouble"
    wanted: str = ""
    """Only hosts and ranks whose name, note or last line has this."""
    chosen: str = ""
    """Only this host, or `rank N`, in full."""
    cursor: str = ""
    """The host or rank under the cursor; empty for the first one, whichever it is."""
    first: int = 0
    """The first line of the table or text that the screen shows."""
    help: bool = False
    """The list of keys, in place of the panels."""
    text: tuple[str, ...] = ()
    """Lines in place of the panels: the stacks of the ranks."""


def line(width: int, *spans: Span, key: str = "") -> ScreenLine:
    """A line of these spans, cut after a word if it is wider than the screen."""
    shown: list[Span] = []
    left = width
    for text, style in spans:
        safe = harmless(text)
        if fitting := fit(safe, left, alone=not shown):
            shown.append(Span(fitting, style))
        if fitting != safe:
            break
        left -= cells(fitting)
    return ScreenLine(tuple(shown), key)


def heading(width: int, text: str, *, focus: bool = False) -> ScreenLine:
    """The first line of a panel, over its whole width. `focus`: the keys act on this panel."""
    return ScreenLine((Span(padded(fit(text, width), width), "focus" if focus else "heading"),))


def fit(text: str, width: int, *, alone: bool = True) -> str:
    """The text in so many columns: without the words that do not fit, and with an ellipsis in their place.

    `alone`: a first word that is too long is cut; otherwise it is left out, as the line has other texts.
    """
    if cells(text) <= width:
        return text
    kept = cut(text, width)[:-1]
    if not text[len(kept)].isspace():
        before, space, _ = kept.rpartition(" ")
        kept = before if space or not alone else kept
    return f"{kept.rstrip(' ,:;')}…" if width > 0 else ""


def joined(parts: Iterable[str], separator: str, width: int) -> str:
    """The parts that are not empty, as many from the first as fit in so many columns."""
    text = ""
    for part in filter(None, parts):
        longer = f"{text}{separator}{part}" if text else part
        if text and cells(longer) > width:
            break
        text = longer
    return text


def padded(text: str, width: int, *, right: bool = False) -> str:
    """The text with blanks up to so many columns, after it or (`right`) before it."""
    blanks = " " * (width - cells(text))
    return blanks + text if right else text + blanks


def style_of(note: Note | None, usual: str = "plain") -> str:
    """The style of a line with this note."""
    return usual if note is None else "bad" if note.bad else "odd"


def has(wanted: str, text: str, note: Note | None) -> bool:
    """Whether a text, or the note beside it, contains the filter's text."""
    return wanted.lower() in f"{text} {note.text if note else ''}".lower()


EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"
# For terminals without UTF-8: the marks of bars, sparklines and curves.
_ASCII = dict(zip(map(ord, f"{EIGHTHS[1:]}{LEVELS}│…"), "...:==##__..-=+#|~", strict=True))
_ASCII |= {0x2800: " "} | dict.fromkeys(range(0x2801, 0x2900), "*")


def in_ascii(text: str) -> str:
    """The text for a terminal that shows ASCII alone, in as many columns."""
    wide = "".join(f"{letter} " if cells(letter) == 2 else letter for letter in text.translate(_ASCII))
    return wide.encode("ascii", "replace").decode()


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
    """A number of bytes in at most eight columns: `512 B`, `1.5 KiB`, `70 GiB`; empty for None."""
    return _scaled(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def short_rate(number: float | None) -> str:
    """Bytes per second in at most eight columns, as networks and disks count them: `3.1 kB/s`."""
    return _scaled(number, 1000, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s"))


def _scaled(number: float | None, base: int, units: Sequence[str]) -> str:
    if number is None:
        return ""
    value = float(number)
    for unit in units:
        if value < 999.5 or unit == units[-1]:
            break
        value /= base
    return f"{value:.1f} {unit}" if unit != units[0] and value < 9.95 else f"{value:.0f} {unit}"


def short_percent(share: float | None) -> str:
    """`83%`; empty for None."""
    return "" if share is None else f"{round(100 * share)}%"


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are there; None without any."""
    measured = [value for value in values if value is not None]
    return sum(measured) / len(measured) if measured else None


def total(values: Iterable[float | None]) -> float | None:
    """The sum of the values that are there; None without any."""
    measured = [value for value in values if value is not None]
    return sum(measured) if measured else None
