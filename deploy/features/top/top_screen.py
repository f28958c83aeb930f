"""The screen of `muster top` as a pure function of the records so far, the user's view, and its size.

From the top: alarms, the job, the hosts, the ranks, the end of the log, the keys. A small screen has a line
in place of a table; on a large one, the log gets the rows that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from ...core.text.terminal import harmless
from ...core.text.text import count, size, span
from .head import Moment, alarm_lines, job_lines
from .notes import Judge, Note, gpu_share
from .screen_lines import (
    HostTable,
    RankTable,
    ScreenLine,
    Span,
    View,
    bar,
    heading,
    host_table,
    joined,
    line,
    mean,
    padded,
    rank_table,
    short_percent,
    short_rate,
    short_size,
    spark,
    state_of,
    style_of,
    total,
)
from .top_history import HostTrack, RankTrack, TopHistory


def host_in_full(history: TopHistory, track: HostTrack, judge: Judge, width: int) -> list[ScreenLine]:
    """One host with its GPUs and its ranks."""
    last = track.last
    note = judge.host(track)
    title = f"{harmless(track.name)}  {note.text if note else ''}"
    lines = [line(width, Span(title, style_of(note, usual="title")))]
    if last is None:
        return lines
    facts = {
        "CPU": f"{bar(last.cpu, 20)} {short_percent(last.cpu)} of {last.cpus} cores, load {last.load}",
        "history": spark([sample.cpu for sample in track.samples], 60, 1.0),
        "memory": f"{_filled(last.memory, last.memory_total)}, swap {size(last.swap or 0)}",
        "/dev/shm": _filled(last.shm, last.shm_total),  # noqa: S108  # a name to read
        "network": f"in {short_rate(last.net_in or 0)}, out {short_rate(last.net_out or 0)}",
        "disks": f"read {short_rate(last.disk_read or 0)}, written {short_rate(last.disk_write or 0)}",
        "hottest": f"{last.temperature:.0f} °C" if last.temperature is not None else "",
    }
    lines += [line(width, Span(f"{name:<10}", "dim"), Span(text)) for name, text in facts.items() if text]
    for gpu in last.gpus:
        memory = f"{size(gpu.memory or 0)} of {size(gpu.memory_total or 0)}"
        figures = f"{memory}, {gpu.power or 0:.0f} W, {gpu.temperature or 0:.0f} °C"
        text = f"{bar(gpu.utilisation, 20)} {short_percent(gpu.utilisation):>4} {figures}"
        number, model = Span(f"{f'GPU {gpu.index}':<10}", "dim"), Span(f"  {gpu.name or ''}", "dim")
        lines.append(line(width, number, Span(text), model))
    ranks = rank_table(history, judge, width)
    own = [ranks.line(index) for index, (rank, _) in enumerate(ranks.rows) if rank.host == track.name]
    return [*lines, *([ScreenLine(()), ranks.heading()] if own else []), *own]


def rank_in_full(track: RankTrack, judge: Judge, width: int) -> list[ScreenLine]:
    """One rank with the last lines of its output."""
    last, note = track.last, judge.rank(track)
    title = f"rank {track.rank} on {harmless(track.host)}  {note.text if note else ''}"
    lines = [line(width, Span(title, style_of(note, usual="title")))]
    if last:
        figures = f"{last.cpu or 0:.2f} cores, {size(last.memory or 0)}, {last.threads} threads"
        moved = f"reads {short_rate(last.read or 0)}, writes {short_rate(last.written or 0)}"
        lines.append(line(width, Span(f"{state_of(last)}, {figures}, {moved}")))
    return [*lines, ScreenLine(()), *(line(width, Span(text)) for text in track.lines)]


def _filled(used: int | None, whole: int | None) -> str:
    """A bar with both sizes; `unknown` without them."""
    if used is None or not whole:
        return "unknown"
    return f"{bar(used / whole, 20)} {size(used)} of {size(whole)}"


def rank_summary(history: TopHistory, judge: Judge, width: int) -> ScreenLine:
    """All ranks in a line: `8 ranks: 7 run, 1 ended; steps 102 to 109; 12.4 cores, 24 GiB`."""
    ranks = [*history.ranks.values()]
    running = sum(track.running for track in ranks)
    steps = [track.step for track in ranks if track.step is not None]
    low, high = min(steps, default=0), max(steps, default=0)
    cpu = total([track.last.cpu for track in ranks if track.last and track.running])
    memory = total([track.last.memory for track in ranks if track.last and track.running])
    notes = [note for track in ranks if (note := judge.rank(track)) and note.bad]
    ended = f", {len(ranks) - running} ended" if running < len(ranks) else ""
    parts = [
        f"{running} run{ended}",
        (f"step {high}" if low == high else f"steps {low} to {high}") if steps else "",
        f"{cpu:.3g} cores" if cpu is not None else "",
        short_size(memory),
        count(len(notes), "alarm") if notes else "",
    ]
    return _summary(f"{count(len(ranks), 'rank')}: ", parts, width)


def host_summary(history: TopHistory, judge: Judge, width: int) -> ScreenLine:
    """All hosts in a line: `40 hosts: all well; CPU 52%; memory 1.7 TiB`."""
    samples = [track.last for track in history.hosts.values() if track.last]
    notes = [note for track in history.hosts.values() if (note := judge.host(track))]
    cpu, gpu = mean(sample.cpu for sample in samples), mean(map(gpu_share, samples))
    parts = [
        state_of_rest(notes),
        f"CPU {short_percent(cpu)}" if cpu is not None else "",
        f"GPU {short_percent(gpu)}" if gpu is not None else "",
        f"memory {short_size(total([sample.memory for sample in samples]))}" if samples else "",
    ]
    return _summary(f"{count(len(history.hosts), 'host')}: ", parts, width)


def _summary(title: str, parts: Sequence[str], width: int) -> ScreenLine:
    return line(width, Span(title, "title"), Span(joined(parts, "; ", width - len(title))))


def state_of_rest(notes: Sequence[Note | None]) -> str:
    """`all well`, or how many of these hosts or ranks are in trouble or unusual."""
    bad = sum(bool(note and note.bad) for note in notes)
    odd = sum(bool(note and not note.bad) for note in notes)
    parts = [f"{bad} in trouble" if bad else "", f"{odd} unusual" if odd else ""]
    return ", ".join(filter(None, parts)) or "all well"


PLAIN_COLUMNS = 120  # of --once
ROWS_WITH_BOTH = 20  # for tables of hosts and of ranks; with fewer, one of them is a line
ROWS_WITH_TITLE, LONGEST_LABEL = 5, 16  # of the log


class Frame(NamedTuple):
    """A whole screen. `keys`: the hosts or ranks on which the cursor may stand, in their order."""

    lines: list[ScreenLine]
    keys: Sequence[str] = ()
    first: int = 0
    """The first line of the table or text that is shown."""
    page: int = 1
    """The rows for a move by a page."""


def frame(history: TopHistory, view: View, moment: Moment, width: int, rows: int) -> Frame:
    """The screen, in exactly so many rows."""
    judge = Judge(history, moment.now)
    alarms = alarm_lines(history, judge, width, max(2, rows // 8))
    head = [*alarms, *job_lines(history, moment, width)][: max(1, rows - 4)]
    body_rows = max(1, rows - len(head) - 1)
    if in_full := _in_full(history, view, judge, width):
        first = max(0, min(view.first, len(in_full) - body_rows))
        body = Frame(in_full[first : first + body_rows], (), first, body_rows)
    else:
        body = _Panels(history, view, judge, width, body_rows).frame()
    blank = [ScreenLine(())] * (body_rows - len(body.lines))
    lines = [*head, *body.lines, *blank, key_line(view, width, full=bool(in_full))]
    return body._replace(lines=lines[:rows])


def _in_full(history: TopHistory, view: View, judge: Judge, width: int) -> list[ScreenLine]:
    """Lines in place of the panels: a host or a rank; empty for the panels."""
    if view.chosen.startswith("rank ") and (rank := history.ranks.get(int(view.chosen[5:]))):
        return rank_in_full(rank, judge, width)
    if host := history.hosts.get(view.chosen):
        return host_in_full(history, host, judge, width)
    return []


def key_line(view: View, width: int, *, full: bool) -> ScreenLine:
    """The keys that act now."""
    other = "hosts" if view.ranks else "ranks"
    views = {"Esc": "back"} if full else {"Tab": other, "Enter": "in full"}
    keys = {"q": "quit", **views, "arrows": "move"}
    parts = ((Span(key, "title"), Span(f" {what}  ", "dim")) for key, what in keys.items())
    return line(width, *chain.from_iterable(parts))


class _Panels:
    """Hosts, ranks and log in so many rows."""

    def __init__(self, history: TopHistory, view: View, judge: Judge, width: int, rows: int) -> None:
        self.history, self.view, self.judge, self.width = history, view, judge, width
        self.hosts = host_table(history, judge, width)
        self.ranks = rank_table(history, judge, width)
        self.is_in_ranks = view.ranks and bool(history.ranks)
        """Whether the cursor is in the table of the ranks."""
        self.host_rows, self.rank_rows, self.log_rows = self._rows(rows)

    def _rows(self, rows: int) -> tuple[int, int, int]:
        """How many rows each panel gets."""
        lines = len(self.history.log)
        log = min(lines, max(1, rows // 6)) if lines else 0
        left = rows - log
        hosts = 1 + max(1, len(self.hosts.rows))
        ranks = 1 + max(1, len(self.ranks.rows)) if self.history.ranks else 0
        focused, other = (ranks, hosts) if self.is_in_ranks else (hosts, ranks)
        if focused + other > left:
            other = min(other, left // 2 if focused > left // 2 else left - focused)
            other = min(1, other) if left < ROWS_WITH_BOTH or other < 3 else other
        focused = min(focused, left - other)
        spare = left - focused - other
        more_log = min(spare, max(0, lines + 1 - log))
        hosts, ranks = (other, focused) if self.is_in_ranks else (focused, other)
        return hosts, ranks, log + more_log

    def frame(self) -> Frame:
        """The panels; the cursor is in one of the tables."""
        view, width = self.view, self.width
        lines: list[ScreenLine] = []
        body = Frame([])
        for table, rows in ((self.hosts, self.host_rows), (self.ranks, self.rank_rows)):
            focus = (table is self.ranks) == self.is_in_ranks
            if rows == 1 and not focus:
                summary = rank_summary if table is self.ranks else host_summary
                lines.append(summary(self.history, self.judge, width))
            elif rows:
                window = _Window(table, view if focus else replace(view, cursor="", first=0), rows - 1)
                lines += [table.heading(focus=focus), *window.lines()]
                if focus:
                    body = Frame([], window.keys, window.first, max(1, rows - 2))
        return body._replace(lines=[*lines, *self._log()])

    def _log(self) -> list[ScreenLine]:
        """The end of the log: each line with the ranks that printed it."""
        titled = self.log_rows >= ROWS_WITH_TITLE
        shown = [*self.history.log.items()][-max(1, self.log_rows - titled) :] if self.log_rows else []
        labels = [
            label if len(label := span(sorted(ranks))) <= LONGEST_LABEL else count(len(ranks), "rank")
            for _, ranks in shown
        ]
        most = max(map(len, labels), default=0)
        return [
            *([heading(self.width, "log, the last lines of the ranks")] if titled else []),
            *(
                line(self.width, Span(f"{padded(label, most)}  ", "dim"), Span(text))
                for label, (text, _) in zip(labels, shown, strict=True)
            ),
        ]


class _Window:
    """The part of a table that fits in so many rows, with the cursor in it."""

    def __init__(self, table: HostTable | RankTable, view: View, rows: int) -> None:
        self.table = table
        self.keys = [track.key for track, _ in table.rows]
        whole = len(self.keys)
        shown_rows = rows if whole <= rows else max(1, rows - 1)
        at = self.keys.index(view.cursor) if view.cursor in self.keys else 0
        self.cursor = self.keys[at] if view.cursor and self.keys else ""
        first = min(max(view.first, at - shown_rows + 1), at)
        self.first = max(0, min(first, whole - shown_rows))
        self.shown = range(self.first, min(whole, self.first + shown_rows))

    def lines(self) -> list[ScreenLine]:
        """The lines that are shown, and a line about the others."""
        lines = [*map(self.table.line, self.shown)]
        if self.cursor:
            at = self.keys.index(self.cursor) - self.first
            spans = tuple(Span(text, "cursor") for text, _ in lines[at].spans)
            lines[at] = lines[at]._replace(spans=spans)
        rest = self._rest()
        return [*lines, line(self.table.width, Span(rest, "dim"))] if rest else lines

    def _rest(self) -> str:
        """`+ 12 more hosts, all well`; empty if all are shown."""
        noun, whole = self.table.noun, len(self.keys)
        below = whole - self.shown.stop
        if whole <= len(self.shown):
            return ""
        if not below:
            return f"{noun}s {self.first + 1} to {whole} of {whole}"
        state = state_of_rest([note for _, note in self.table.rows[self.shown.stop :]])
        position = f" ({noun}s {self.first + 1} to {self.shown.stop} of {whole})" if self.first else ""
        return f"+ {count(below, f'more {noun}')}, {state}{position}"


def everything(history: TopHistory, moment: Moment) -> str:
    """All hosts and ranks as plain text, for `--once`."""
    judge, width = Judge(history, moment.now), PLAIN_COLUMNS
    hosts = host_table(history, judge, width)
    ranks = rank_table(history, judge, width)
    parts = [
        [*alarm_lines(history, judge, 10_000, 1000), *job_lines(history, moment, width)],
        *([table.heading(), *map(table.line, range(len(table.rows)))] for table in (hosts, ranks)),
    ]
    shown = parts if ranks.rows else parts[:2]
    return "\n\n".join("\n".join(map(str, part)) for part in shown) + "\n"
