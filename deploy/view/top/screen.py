"""The screen of `muster top` as a pure function of the records so far, the user's view, and its size.

From the top: alarms, the job, its curves, the hosts, the ranks, the end of the log, the keys. A small screen
has a line in place of a table, and no curves; a large one gives each of them what it can fill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...console.text import count, span
from . import tables
from .curves import LEAST_ROWS, curves_of, drawn
from .details import host_in_full, host_summary, rank_in_full, rank_summary, state_of_rest
from .head import Moment, alarm_lines, job_lines
from .history import TopHistory
from .judge import Judge
from .lines import ScreenLine, Span, View, heading, line, padded

PLAIN_COLUMNS = 120  # of --once
ROWS_WITH_CURVES = 26
ROWS_WITH_BOTH = 20  # for tables of hosts and of ranks; with fewer, one of them is a line
ROWS_WITH_TITLE, LONGEST_LABEL = 5, 16  # of the log
KEYS = {
    "Tab": "hosts or ranks: the other table",
    "arrows, j, k, PgUp, PgDn, Home, End": "move",
    "Enter": "the host or rank under the cursor in full",
    "Esc": "back; without a filter",
    "/": "only hosts and ranks with a text",
    "o": "the next order: trouble, name, CPU, memory, GPU",
    "s": "the stacks of all ranks",
    "?": "these keys",
    "q, Ctrl-C": "quit; the job goes on",
}


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
    room = max(1, rows - len(head) - 1)
    if in_full := _in_full(history, view, judge, width):
        first = max(0, min(view.first, len(in_full) - room))
        body = Frame(in_full[first : first + room], (), first, room)
    else:
        body = _Panels(history, view, judge, width, room).frame()
    blank = [ScreenLine(())] * (room - len(body.lines))
    lines = [*head, *body.lines, *blank, key_line(view, width, full=bool(in_full))]
    return body._replace(lines=lines[:rows])


def _in_full(history: TopHistory, view: View, judge: Judge, width: int) -> list[ScreenLine]:
    """What stands in place of the panels: keys, stacks, a host or a rank; empty for the panels."""
    if view.help:
        names = max(map(len, KEYS)) + 2
        return [line(width, Span(padded(key, names), "title"), Span(what)) for key, what in KEYS.items()]
    if view.text:
        return [line(width, Span(one)) for one in view.text]
    if view.chosen.startswith("rank ") and (rank := history.ranks.get(int(view.chosen[5:]))):
        return rank_in_full(rank, judge, width)
    if host := history.hosts.get(view.chosen):
        return host_in_full(history, host, judge, width)
    return []


def key_line(view: View, width: int, *, full: bool) -> ScreenLine:
    """The keys that act now."""
    other = "hosts" if view.ranks else "ranks"
    keys = [("q", "quit"), ("Esc", "back")] if full else [("q", "quit"), ("Tab", other), ("Enter", "in full")]
    more = [("/", "filter"), ("o", f"order: {view.sort}"), ("s", "stacks"), ("?", "keys")]
    if view.wanted:
        keys, more[0] = [("Esc", f"ends the filter: {view.wanted}"), *keys], ("/", "change it")
    return line(
        width,
        *(part for key, what in [*keys, *more] for part in (Span(key, "title"), Span(f" {what}  ", "dim"))),
    )


class _Panels:
    """Curves, hosts, ranks and log in so many rows."""

    def __init__(self, history: TopHistory, view: View, judge: Judge, width: int, room: int) -> None:
        self.history, self.view, self.judge, self.width = history, view, judge, width
        self.hosts = tables.host_table(history, view, judge, width)
        self.ranks = tables.rank_table(history, view, judge, width)
        self.curves = curves_of(history)[: 2 if width >= 100 else 1] if room >= ROWS_WITH_CURVES else []
        self.curve_rows, self.host_rows, self.rank_rows, self.log_rows = self._rows(room)

    def _rows(self, room: int) -> tuple[int, int, int, int]:
        """How many rows each panel gets."""
        curves = max(LEAST_ROWS, room // 4) if self.curves else 0
        lines = len(self.history.log)
        log = min(lines, max(1, room // 6)) if lines else 0
        left = room - curves - log
        wanted = {False: 1 + max(1, len(self.hosts.rows)), True: 0}
        if self.history.ranks:
            wanted[True] = 1 + max(1, len(self.ranks.rows))
        focus = self.view.ranks and bool(wanted[True])
        other = wanted[not focus]
        if wanted[focus] + other > left:
            other = min(other, left // 2 if wanted[focus] > left // 2 else left - wanted[focus])
            other = min(1, other) if left < ROWS_WITH_BOTH or other < 3 else other
        first = min(wanted[focus], left - other)
        spare = left - first - other
        more_log = min(spare, max(0, lines + 1 - log))
        grown = min(spare - more_log, room // 2 - curves) if self.curves else 0
        sizes = {focus: first, not focus: other}
        return curves + max(0, grown), sizes[False], sizes[True], log + more_log

    def frame(self) -> Frame:
        """The panels; the cursor is in one of the tables."""
        view, width = self.view, self.width
        lines = drawn(self.curves, width, self.curve_rows) if self.curves else []
        keys: Sequence[str] = ()
        first, page = 0, 1
        for ranks, rows in ((False, self.host_rows), (True, self.rank_rows)):
            focus = ranks == (view.ranks and bool(self.history.ranks))
            if rows == 1 and not focus:
                summary = rank_summary if ranks else host_summary
                lines.append(summary(self.history, self.judge, width))
            elif rows:
                window = _Window(self.ranks if ranks else self.hosts, view if focus else View(), rows - 1)
                lines += self._table(window, ranks=ranks, focus=focus)
                if focus:
                    keys, first, page = window.keys, window.first, max(1, rows - 2)
        return Frame([*lines, *self._log()], keys, first, page)

    def _table(self, window: _Window, *, ranks: bool, focus: bool) -> list[ScreenLine]:
        """The window of a table, below the names of its columns; at its end, what is not shown."""
        lines = []
        if ranks:
            lines.append(tables.rank_heading(self.ranks, " rank host", self.width, focus=focus))
            lines += [tables.rank_line(self.ranks, index, self.width) for index in window.shown]
        else:
            lines.append(tables.host_heading(self.hosts, "host", self.width, focus=focus))
            lines += [tables.host_line(self.hosts, index, self.width) for index in window.shown]
        if focus:
            lines = [
                one._replace(spans=tuple(Span(part.text, "cursor") for part in one.spans))
                if one.key and one.key == window.cursor
                else one
                for one in lines
            ]
        noun = "rank" if ranks else "host"
        if not window.keys:
            return [*lines, line(self.width, Span(f"no {noun} has the text {self.view.wanted}", "dim"))]
        return [*lines, *window.rest(noun, self.width)]

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

    def __init__(self, table: tables.HostTable | tables.RankTable, view: View, rows: int) -> None:
        self.notes = [note for _, note in table.rows]
        self.keys = [tables.key_of(track) for track, _ in table.rows]
        whole = len(self.keys)
        self.shown_rows = rows if whole <= rows else max(1, rows - 1)
        at = self.keys.index(view.cursor) if view.cursor in self.keys else 0
        self.cursor = self.keys[at] if view.cursor and self.keys else ""
        first = min(max(view.first, at - self.shown_rows + 1), at)
        self.first = max(0, min(first, whole - self.shown_rows))
        self.shown = range(self.first, min(whole, self.first + self.shown_rows))

    def rest(self, noun: str, width: int) -> list[ScreenLine]:
        """`+ 12 more hosts, all well`; nothing if all are shown."""
        below, whole = len(self.keys) - self.shown.stop, len(self.keys)
        if whole <= len(self.shown):
            return []
        if not below:
            return [line(width, Span(f"{noun}s {self.first + 1} to {whole} of {whole}", "dim"))]
        state = state_of_rest(self.notes[self.shown.stop :])
        position = f" ({noun}s {self.first + 1} to {self.shown.stop} of {whole})" if self.first else ""
        return [
            line(
                width, Span(f"+ {below} more {noun if below == 1 else f'{noun}s'}, {state}{position}", "dim")
            )
        ]


def everything(history: TopHistory, moment: Moment) -> str:
    """All hosts and ranks as plain text, for `--once`."""
    judge, width = Judge(history, moment.now), PLAIN_COLUMNS
    hosts = tables.host_table(history, View(), judge, width)
    ranks = tables.rank_table(history, View(), judge, width)
    parts = [
        [*alarm_lines(history, judge, 10_000, 1000), *job_lines(history, moment, width)],
        [tables.host_heading(hosts, "host", width, focus=False)]
        + [tables.host_line(hosts, index, width) for index in range(len(hosts.rows))],
        [tables.rank_heading(ranks, " rank host", width, focus=False)]
        + [tables.rank_line(ranks, index, width) for index in range(len(ranks.rows))],
    ]
    shown = parts if ranks.rows else parts[:2]
    return "\n\n".join("\n".join(map(str, part)) for part in shown) + "\n"
