"""Hosts and ranks as lines of the screen. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from ...core.hosts.host_sample import HostSample, RankSample
from ...core.text.columns import cells
from ...core.text.terminal import harmless
from ...core.text.text import count
from .notes import Judge, Note, gpu_share
from .screen_lines import (
    ScreenLine,
    Span,
    View,
    bar,
    fit,
    has,
    heading,
    line,
    padded,
    short_percent,
    short_rate,
    short_size,
    spark,
    style_of,
    total,
)
from .top_history import HostTrack, RankTrack, TopHistory

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
        """One host. Of one that does not answer, the note is in place of old figures."""
        track, note = self.rows[index]
        name = Span(f"{self.name_of(track.name)} ", style_of(note))
        if track.last is None or (note and track.why):
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


def host_table(history: TopHistory, view: View, judge: Judge, width: int) -> HostTable:
    """The hosts that pass the filter, in the order of the view."""
    rows = [(track, judge.host(track)) for track in history.hosts.values()]
    if view.wanted:
        rows = [(track, note) for track, note in rows if has(view.wanted, track.name, note)]
    rows.sort(key=lambda row: (_order(view.sort, *row), _natural(row[0].name)))
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


def rank_table(history: TopHistory, view: View, judge: Judge, width: int) -> RankTable:
    """The ranks that pass the filter, in the order of the view."""
    rows = [(track, judge.rank(track)) for track in history.ranks.values()]
    if view.wanted:
        rows = [
            (track, note)
            for track, note in rows
            if has(view.wanted, f"rank {track.rank} {track.host} {track.last_line}", note)
        ]
    rows.sort(key=lambda row: (_order(view.sort, *row), row[0].rank))
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


def _order(sort: str, track: Track, note: Note | None) -> float:
    """The greatest figure first; by name, all are equal."""
    last = track.last
    figures = {
        "cpu": last.cpu if last else None,
        "memory": last.memory if last else None,
        "gpu": gpu_share(last) if isinstance(last, HostSample) else None,
        "trouble": 2.0 if note and note.bad else 1.0 if note else 0.0,
    }
    return -(figures.get(sort) or 0.0)


def _natural(name: str) -> tuple[object, ...]:
    """Sorts node2 before node10."""
    parts = re.split(r"([0-9]+)", name)  # texts and numbers by turns
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts))
