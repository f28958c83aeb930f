"""Hosts and ranks as lines of the screen. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...console.terminal import harmless
from ...console.text import count, duration, size
from .history import HostTrack, RankTrack, TopHistory
from .judge import Judge, Note, gpu_share
from .lines import (
    NAME,
    SPARK,
    ScreenLine,
    Span,
    View,
    bar,
    has,
    noted,
    short_percent,
    short_size,
    spark,
    style_of,
)


def host_table(history: TopHistory, view: View, judge: Judge) -> list[ScreenLine]:
    """A line for each host that passes the filter, below the names of the columns."""
    gpus = any(track.last and track.last.gpus for track in history.hosts.values())
    gpu = "GPU".ljust(11) if gpus else ""
    title = f"{'host':<{NAME}} {'CPU':<{11 + SPARK}} {'memory B':<10} {gpu}{'in/out B/s':<10}"
    rows = [(track, judge.host(track)) for track in history.hosts.values()]
    rows = [row for row in rows if has(view.wanted, row[0].name, row[1])]
    rows.sort(key=lambda row: _host_key(view.sort, *row))
    lines = [_host_line(track, note, gpus=gpus) for track, note in rows]
    return [ScreenLine((Span(title.rstrip(), "dim"),)), *lines]


def _host_line(track: HostTrack, note: Note | None, *, gpus: bool) -> ScreenLine:
    last = track.last
    name = Span(f"{harmless(track.name)[:NAME]:<{NAME}} ", style_of(note))
    if last is None:
        return ScreenLine((name, Span(harmless(note.text) if note else "", style_of(note))), track.name)
    used = last.memory / last.memory_total if last.memory is not None and last.memory_total else None
    shares = [sample.cpu for sample in track.samples]
    spans = [
        name,
        Span(bar(last.cpu, 4), "bar"),
        Span(f" {short_percent(last.cpu)} "),
        Span(spark(shares, SPARK, 1.0), "spark"),
        Span("  "),
        Span(bar(used, 4), "bar"),
        Span(f" {short_size(last.memory):>4} "),
    ]
    if gpus:
        spans += [Span(bar(gpu_share(last), 4), "bar"), Span(f" {short_percent(gpu_share(last))}  ")]
    spans.append(Span(f"{short_size(last.net_in):>4} {short_size(last.net_out):>4} "))
    spans.append(Span(harmless(note.text) if note else _ranks(last.ranks), style_of(note, usual="dim")))
    return ScreenLine(tuple(spans), track.name)


def _host_key(sort: str, track: HostTrack, note: Note | None) -> tuple[float, tuple[object, ...]]:
    last = track.last
    figures = {
        "cpu": (last.cpu if last else None),
        "memory": (last.memory if last else None),
        "gpu": gpu_share(last),
        "trouble": (2.0 if note and note.bad else 1.0 if note else 0.0),
    }
    figure = figures.get(sort)
    return (-figure if figure is not None else 0.0, _natural(track.name))


def host_in_full(history: TopHistory, track: HostTrack, judge: Judge) -> list[ScreenLine]:
    """One host with its GPUs and its ranks."""
    last = track.last
    note = judge.host(track)
    lines = [ScreenLine((Span(harmless(track.name), "title"), Span("  "), *noted(note)))]
    if last is None:
        return lines
    facts = {
        "CPU": f"{bar(last.cpu, 20)} {short_percent(last.cpu)} of {last.cpus}, load {last.load}",
        "history": spark([sample.cpu for sample in track.samples], 60, 1.0),
        "memory": f"{_filled(last.memory, last.memory_total)}, swap {size(last.swap or 0)}",
        "/dev/shm": _filled(last.shm, last.shm_total),  # noqa: S108  # a name to read
        "network": f"{size(last.net_in or 0)}/s in, {size(last.net_out or 0)}/s out",
        "disks": f"{size(last.disk_read or 0)}/s read, {size(last.disk_write or 0)}/s written",
        "hottest": f"{last.temperature:.0f} C" if last.temperature is not None else "",
    }
    lines += [ScreenLine((Span(f"{name:<10}", "dim"), Span(text))) for name, text in facts.items() if text]
    for gpu in last.gpus:
        memory = f"{size(gpu.memory or 0)} of {size(gpu.memory_total or 0)}"
        figures = f"{memory}, {gpu.power or 0:.0f} W, {gpu.temperature or 0:.0f} C"
        text = f"{bar(gpu.utilisation, 20)} {short_percent(gpu.utilisation)} {figures}"
        name = f"  {harmless(gpu.name or '')}"
        lines.append(ScreenLine((Span(f"{f'GPU {gpu.index}':<10}", "dim"), Span(text), Span(name, "dim"))))
    ranks = [rank for rank in sorted(history.ranks) if history.ranks[rank].host == track.name]
    lines += [ScreenLine((Span(""),)), *([rank_title()] if ranks else [])]
    return [*lines, *(rank_line(history.ranks[rank], judge) for rank in ranks)]


def _ranks(ranks: Sequence[object]) -> str:
    return count(len(ranks), "rank") if ranks else ""


def _filled(used: int | None, whole: int | None) -> str:
    """A bar with both sizes; `unknown` without them."""
    if used is None or not whole:
        return "unknown"
    return f"{bar(used / whole, 20)} {size(used)} of {size(whole)}"


def _natural(name: str) -> tuple[object, ...]:
    """Sorts node2 before node10."""
    parts = re.split(r"([0-9]+)", name)  # texts and numbers by turns
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts))


def rank_table(history: TopHistory, view: View, judge: Judge) -> list[ScreenLine]:
    """A line for each rank that passes the filter, below the names of the columns."""
    rows = [(track, judge.rank(track)) for track in history.ranks.values()]
    rows = [
        (track, note)
        for track, note in rows
        if has(view.wanted, f"rank {track.rank} {track.host} {_last_line(track)}", note)
    ]
    rows.sort(key=lambda row: _rank_key(view.sort, *row))
    return [rank_title(), *(rank_line(track, judge) for track, _ in rows)]


def rank_title() -> ScreenLine:
    """The names of the columns."""
    return ScreenLine(
        (
            Span(
                f"{'rank':>5} {'host':<{NAME}} {'CPU cores':<{5 + SPARK}} {'mem B':>5}   step last line",
                "dim",
            ),
        )
    )


def rank_line(track: RankTrack, judge: Judge) -> ScreenLine:
    """One rank: its figures, its note, and its last line of output."""
    last, note = track.last, judge.rank(track)
    cpu = f"{last.cpu:4.1f}" if last and last.cpu is not None else "    "
    most = max(1.0, max((entry.cpu or 0.0 for entry in track.samples), default=1.0))
    step = "" if track.step is None else str(track.step)
    note_text = f"{note.text}: " if note else ""
    return ScreenLine(
        (
            Span(f"{track.rank:>5} {harmless(track.host)[:NAME]:<{NAME}} ", style_of(note)),
            Span(f"{cpu} "),
            Span(spark([entry.cpu for entry in track.samples], SPARK, most), "spark"),
            Span(f" {short_size(last.memory if last else None):>4} {last.state or ' ' if last else ' '} "),
            Span(f"{step[-6:]:>5} "),
            Span(harmless(note_text), style_of(note)),
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


def rank_in_full(track: RankTrack, judge: Judge) -> list[ScreenLine]:
    """One rank with the last lines of its output."""
    last = track.last
    title = (Span(f"rank {track.rank} on {harmless(track.host)}", "title"), Span("  "))
    lines = [ScreenLine((*title, *noted(judge.rank(track))))]
    if last:
        figures = f"{last.cpu or 0:.2f} cores, {size(last.memory or 0)}, {last.threads} threads, {last.state}"
        moved = f"{size(last.read or 0)}/s read, {size(last.written or 0)}/s written"
        lines.append(ScreenLine((Span(f"{figures}, {moved}"),)))
    if track.own is not None:
        lines.append(ScreenLine((Span(f"{duration(track.own)} of a step without waiting for others"),)))
    return [*lines, ScreenLine((Span(""),)), *(ScreenLine((Span(harmless(line)),)) for line in track.lines)]


def _last_line(track: RankTrack) -> str:
    return track.lines[-1] if track.lines else ""
