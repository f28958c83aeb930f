"""Lines of the screen: spans of text, bars, sparklines, short numbers; tables of hosts and ranks. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

from ...core.hosts.host_sample import HostSample, RankSample
from ...core.text.columns import cells, cut
from ...core.text.terminal import harmless
from ...core.text.text import count
from .notes import Judge, Note, gpu_share
from .top_history import HostTrack, RankTrack, TopHistory


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
    chosen: str = ""
    """Only this host, or `rank N`, in full."""
    cursor: str = ""
    """The host or rank under the cursor; empty for the first one, whichever it is."""
    first: int = 0
    """The first line of the table or text that the screen shows."""


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


EIGHTHS = " ▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"


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


Track = TypeVar("Track", HostTrack, RankTrack)
LEAST_NOTE, LEAST_LINE = 22, 24  # columns for the note of a host, and for the last line of a rank


@dataclass(frozen=True)
class Column(Generic[Track]):
    """A column of a table. `importance`: of columns that do not fit together, the least one is left out."""

    title: str
    width: int
    importance: int
    text: Callable[[Track], str]
    style: str = "plain"
    right: bool = True

    def cell(self, text: str) -> str:
        return padded(text, self.width, right=self.right)


@dataclass(frozen=True)
class TrackTable(Generic[Track]):
    """The columns that fit on the screen, and the hosts or ranks in their order with their notes."""

    columns: tuple[Column[Track], ...]
    name_width: int
    width: int
    rows: list[tuple[Track, Note | None]]
    noun: ClassVar[str]
    title: ClassVar[str]
    """Above the names."""
    number_width: ClassVar[int] = 0
    """Of the number before each name."""
    last_title: ClassVar[str] = ""
    """Above the text after the columns."""

    def heading(self, *, focus: bool = False) -> ScreenLine:
        titles = "".join(f"{column.cell(column.title)} " for column in self.columns)
        name = padded(self.title, self.number_width + self.name_width)
        return heading(self.width, f"{name} {titles} {self.last_title}", focus=focus)

    def name_of(self, host: str) -> str:
        """The name of a host, in the width of its column."""
        return padded(fit(harmless(host), self.name_width), self.name_width)

    def spans_of(self, track: Track) -> list[Span]:
        """The columns of a line, and a blank."""
        return [
            *(Span(f"{column.cell(column.text(track))} ", column.style) for column in self.columns),
            Span(" "),
        ]


class HostTable(TrackTable[HostTrack]):
    """The table of the hosts."""

    noun = title = "host"

    def line(self, index: int) -> ScreenLine:
        """One host. Without a sample, the note is in place of figures."""
        track, note = self.rows[index]
        name = Span(f"{self.name_of(track.name)} ", style_of(note))
        if track.last is None:
            text = Span(note.text if note else "", style_of(note))
            return line(self.width, name, text, key=track.key)
        ranks = count(len(track.last.ranks), "rank") if track.last.ranks else ""
        last = Span(note.text if note else ranks, style_of(note, usual="dim"))
        return line(self.width, name, *self.spans_of(track), last, key=track.key)


class RankTable(TrackTable[RankTrack]):
    """The table of the ranks."""

    noun, title, number_width, last_title = "rank", " rank host", 6, "last line"

    def line(self, index: int) -> ScreenLine:
        """One rank: its figures, its note, and its last line of output."""
        track, note = self.rows[index]
        text = f"{note.text}: " if note and track.last_line else note.text if note else ""
        return line(
            self.width,
            Span(f"{track.rank:>5} {self.name_of(track.host)} ", style_of(note)),
            *self.spans_of(track),
            Span(text, style_of(note)),
            Span(track.last_line, "dim"),
            key=track.key,
        )


def host_table(history: TopHistory, judge: Judge, width: int) -> HostTable:
    """The hosts, those in trouble first."""
    rows = [(track, judge.host(track)) for track in history.hosts.values()]
    rows.sort(key=lambda row: (_order(row[1]), _natural(row[0].name)))
    name = _name_width(history, width)
    left = width - name - 1 - LEAST_NOTE
    return HostTable(_fitting(_host_columns(width), [*history.hosts.values()], left), name, width, rows)


def _host_columns(width: int) -> list[Column[HostTrack]]:
    def of(figure: Callable[[HostSample], str]) -> Callable[[HostTrack], str]:
        return lambda track: figure(track.last) if track.last else ""

    history = 16 if width >= 160 else 8
    return [
        Column("CPU", 4, 90, of(lambda last: short_percent(last.cpu))),
        Column("", 6, 20, of(lambda last: bar(last.cpu, 6)), "mark"),
        Column("", history, 40, lambda track: _spark(track, history), "mark"),
        Column("memory", 8, 80, of(lambda last: short_size(last.memory))),
        Column("of", 8, 28, of(lambda last: short_size(last.memory_total))),
        Column("GPU", 4, 85, of(lambda last: short_percent(gpu_share(last)))),
        Column(
            "", 6, 19, of(lambda last: "" if gpu_share(last) is None else bar(gpu_share(last), 6)), "mark"
        ),
        Column("GPU mem", 8, 30, of(lambda last: short_size(total([gpu.memory for gpu in last.gpus])))),
        Column("power", 7, 12, of(lambda last: _watts([gpu.power for gpu in last.gpus]))),
        Column("net in", 8, 71, of(lambda last: short_rate(last.net_in))),
        Column("net out", 8, 70, of(lambda last: short_rate(last.net_out))),
        Column("disk read", 9, 17, of(lambda last: short_rate(last.disk_read))),
        Column("written", 8, 16, of(lambda last: short_rate(last.disk_write))),
        Column("load", 5, 15, of(lambda last: "" if last.load is None else f"{last.load:.1f}")),
        Column(
            "hottest",
            7,
            14,
            of(lambda last: "" if last.temperature is None else f"{last.temperature:.0f} °C"),
        ),
    ]


def rank_table(history: TopHistory, judge: Judge, width: int) -> RankTable:
    """The ranks, those in trouble first."""
    rows = [(track, judge.rank(track)) for track in history.ranks.values()]
    rows.sort(key=lambda row: (_order(row[1]), row[0].rank))
    name = _name_width(history, width)
    columns = _rank_columns(width, over=history.is_over)
    left = width - name - 7 - max(LEAST_LINE, width // 4)
    return RankTable(_fitting(columns, [*history.ranks.values()], left), name, width, rows)


def _rank_columns(width: int, *, over: bool) -> list[Column[RankTrack]]:
    """Every column that a rank can have. `over`: its job has ended, so that it has no state."""

    def of(figure: Callable[[RankSample], str]) -> Callable[[RankTrack], str]:
        return lambda track: figure(track.last) if track.last else ""

    history = 16 if width >= 160 else 8
    return [
        Column("CPU", 10, 90, of(lambda last: _cores(last.cpu))),
        Column("", history, 20, lambda track: _spark(track, history), "mark"),
        Column("memory", 8, 50, of(lambda last: short_size(last.memory))),
        Column("state", 8, 30, of(lambda last: "" if over else state_of(last)), right=False),
        Column("threads", 7, 10, of(lambda last: "" if last.threads is None else str(last.threads))),
        Column("read", 8, 9, of(lambda last: short_rate(last.read))),
        Column("written", 8, 8, of(lambda last: short_rate(last.written))),
        Column("step", 7, 80, lambda track: "" if track.step is None else str(track.step)),
        Column("loss", 8, 25, lambda track: "" if track.loss is None else f"{track.loss:.4g}"),
    ]


STATES = {"R": "runs", "S": "sleeps", "D": "disk", "T": "stopped", "t": "traced", "Z": "ended"}


def state_of(sample: RankSample) -> str:
    """The state of the process of a rank, as the kernel has it: `runs`, `sleeps`."""
    return STATES.get(sample.state or "", sample.state or "")


def _name_width(history: TopHistory, width: int) -> int:
    """The width of the names of the hosts: at most a quarter of the screen."""
    longest = max((cells(harmless(name)) for name in history.hosts), default=4)
    return max(8, min(longest, width // 4))


def _fitting(columns: list[Column[Track]], tracks: list[Track], width: int) -> tuple[Column[Track], ...]:
    """The columns that have figures and fit; the least important ones are left out."""
    shown = [column for column in columns if any(column.text(track) for track in tracks)]
    while sum(column.width + 1 for column in shown) > width and len(shown) > 2:
        shown.remove(min(shown, key=lambda column: column.importance))
    return tuple(shown)


def _spark(track: Track, width: int) -> str:
    """The last uses of the processors, from 0 to 1, or to the highest if that is more cores."""
    values = [sample.cpu for sample in track.samples]
    return spark(values, width, max(1.0, *(value or 0.0 for value in values))) if len(values) > 1 else ""


def _cores(cpu: float | None) -> str:
    return "" if cpu is None else f"{cpu:.2f} cores" if cpu < 0.995 else f"{cpu:.1f} cores"


def _watts(values: Sequence[float | None]) -> str:
    power = total(values)
    return "" if power is None else f"{power:.0f} W"


def _order(note: Note | None) -> int:
    return 2 if note is None else 0 if note.bad else 1


def _natural(name: str) -> tuple[object, ...]:
    """Sorts node2 before node10."""
    parts = re.split(r"([0-9]+)", name)  # texts and numbers by turns
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts))
