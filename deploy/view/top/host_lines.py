"""Hosts as lines of the screen. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...console.terminal import harmless
from ...console.text import count, size
from .history import History, HostTrack
from .judge import Judge, Note, gpu_share
from .lines import NAME, SPARK, Line, Span, View, has, noted, style_of
from .marks import bar, short_percent, short_size, spark
from .rank_lines import rank_line, rank_title


def host_table(history: History, view: View, judge: Judge) -> list[Line]:
    """A line for each host that is wanted, below the names of the columns."""
    gpus = any(track.last and track.last.gpus for track in history.hosts.values())
    gpu = "GPU".ljust(11) if gpus else ""
    title = f"{'host':<{NAME}} {'CPU':<{11 + SPARK}} {'memory':<10} {gpu}{'net in/out':<10}"
    rows = [(track, judge.host(track)) for track in history.hosts.values()]
    rows = [row for row in rows if has(view.wanted, row[0].name, row[1])]
    rows.sort(key=lambda row: _host_key(view.sort, *row))
    lines = [_host_line(track, note, gpus=gpus) for track, note in rows]
    return [Line((Span(title.rstrip(), "dim"),)), *lines]


def _host_line(track: HostTrack, note: Note | None, *, gpus: bool) -> Line:
    last = track.last
    name = Span(f"{harmless(track.name)[:NAME]:<{NAME}} ", style_of(note))
    if last is None:
        return Line((name, Span(harmless(note.text) if note else "", style_of(note))), track.name)
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
    return Line(tuple(spans), track.name)


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


def host_in_full(history: History, track: HostTrack, judge: Judge) -> list[Line]:
    """One host with its GPUs and its ranks."""
    last = track.last
    note = judge.host(track)
    lines = [Line((Span(harmless(track.name), "title"), Span("  "), *noted(note)))]
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
    lines += [Line((Span(f"{name:<10}", "dim"), Span(text))) for name, text in facts.items() if text]
    for gpu in last.gpus:
        memory = f"{size(gpu.memory or 0)} of {size(gpu.memory_total or 0)}"
        figures = f"{memory}, {gpu.power or 0:.0f} W, {gpu.temperature or 0:.0f} C"
        text = f"{bar(gpu.utilisation, 20)} {short_percent(gpu.utilisation)} {figures}"
        name = f"  {harmless(gpu.name or '')}"
        lines.append(Line((Span(f"{f'GPU {gpu.index}':<10}", "dim"), Span(text), Span(name, "dim"))))
    ranks = [rank for rank in sorted(history.ranks) if history.ranks[rank].host == track.name]
    lines += [Line((Span(""),)), *([rank_title()] if ranks else [])]
    return [*lines, *(rank_line(history.ranks[rank], judge) for rank in ranks)]


def _ranks(ranks: Sequence[object]) -> str:
    return count(len(ranks), "rank") if ranks else ""


def _filled(used: int | None, whole: int | None) -> str:
    """A bar with both numbers of bytes; `unknown` without them."""
    if used is None or not whole:
        return "unknown"
    return f"{bar(used / whole, 20)} {size(used)} of {size(whole)}"


def _natural(name: str) -> tuple[object, ...]:
    """Sorts node2 before node10."""
    parts = re.split(r"([0-9]+)", name)  # texts and numbers by turns
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts))
