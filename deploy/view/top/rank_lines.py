"""Ranks as lines of the screen. Pure."""

from __future__ import annotations

from ...console.terminal import harmless
from ...console.text import duration, size
from .history import History, RankTrack
from .judge import Judge, Note
from .lines import NAME, SPARK, Line, Span, View, has, noted, style_of
from .marks import short_size, spark


def rank_table(history: History, view: View, judge: Judge) -> list[Line]:
    """A line for each rank that is wanted, below the names of the columns."""
    rows = [(track, judge.rank(track)) for track in history.ranks.values()]
    rows = [
        (track, note)
        for track, note in rows
        if has(view.wanted, f"rank {track.rank} {track.host} {_last_line(track)}", note)
    ]
    rows.sort(key=lambda row: _rank_key(view.sort, *row))
    return [rank_title(), *(rank_line(track, judge) for track, _ in rows)]


def rank_title() -> Line:
    """The names of the columns."""
    return Line(
        (Span(f"{'rank':>5} {'host':<{NAME}} {'CPU':<{5 + SPARK}} {'mem':>4}    step last line", "dim"),)
    )


def rank_line(track: RankTrack, judge: Judge) -> Line:
    """One rank: its figures, what is odd, and what it printed last."""
    last, note = track.last, judge.rank(track)
    cpu = f"{last.cpu:4.1f}" if last and last.cpu is not None else "    "
    most = max(1.0, max((entry.cpu or 0.0 for entry in track.samples), default=1.0))
    step = "" if track.step is None else str(track.step)
    said = f"{note.text}: " if note else ""
    return Line(
        (
            Span(f"{track.rank:>5} {harmless(track.host)[:NAME]:<{NAME}} ", style_of(note)),
            Span(f"{cpu} "),
            Span(spark([entry.cpu for entry in track.samples], SPARK, most), "spark"),
            Span(f" {short_size(last.memory if last else None):>4} {last.state or ' ' if last else ' '} "),
            Span(f"{step[-6:]:>5} "),
            Span(harmless(said), style_of(note)),
            Span(harmless(_last_line(track)), "dim"),
        ),
        f"rank {track.rank}",
    )


def _rank_key(sort: str, track: RankTrack, note: Note | None) -> tuple[float, int]:
    last = track.last
    figures = {
        "cpu": (last.cpu if last else None),
        "memory": (last.memory if last else None),
        "trouble": (2.0 if note and note.bad else 1.0 if note else 0.0),
    }
    figure = figures.get(sort)
    return (-figure if figure is not None else 0.0, track.rank)


def rank_in_full(track: RankTrack, judge: Judge) -> list[Line]:
    """One rank with the last lines of its output."""
    last = track.last
    title = (Span(f"rank {track.rank} on {harmless(track.host)}", "title"), Span("  "))
    lines = [Line((*title, *noted(judge.rank(track))))]
    if last:
        figures = f"{last.cpu or 0:.2f} cores, {size(last.memory or 0)}, {last.threads} threads, {last.state}"
        moved = f"{size(last.read or 0)}/s read, {size(last.written or 0)}/s written"
        lines.append(Line((Span(f"{figures}, {moved}"),)))
    if track.own is not None:
        lines.append(Line((Span(f"{duration(track.own)} of a step without waiting for others"),)))
    return [*lines, Line((Span(""),)), *(Line((Span(harmless(line)),)) for line in track.lines)]


def _last_line(track: RankTrack) -> str:
    return track.lines[-1] if track.lines else ""
