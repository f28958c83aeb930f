"""One host or one rank in full, and all hosts or all ranks in a line. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.text.terminal import harmless
from ...core.text.text import count, duration, ranges, size
from .history import HostTrack, RankTrack, TopHistory
from .judge import Judge, Note, gpu_share
from .lines import (
    ScreenLine,
    Span,
    View,
    bar,
    joined,
    line,
    mean,
    short_percent,
    short_rate,
    short_size,
    spark,
    style_of,
    total,
)
from .tables import rank_table, state_of


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
        "preloaded": f"{size(last.preloaded)} for the next attempt" if last.preloaded else "",
        "/dev/shm": _filled(last.shm, last.shm_total),  # noqa: S108  # a name to read
        "network": f"in {short_rate(last.net_in or 0)}, out {short_rate(last.net_out or 0)}",
        "disks": f"read {short_rate(last.disk_read or 0)}, written {short_rate(last.disk_write or 0)}",
        "hottest": f"{last.temperature:.0f} °C" if last.temperature is not None else "",
    }
    for lease in last.leases:
        facts[f"GPU {ranges(lease.gpus)}"] = f"leased by job {harmless(lease.job)} of {harmless(lease.user)}"
    lines += [line(width, Span(f"{name:<10}", "dim"), Span(text)) for name, text in facts.items() if text]
    for gpu in last.gpus:
        memory = f"{size(gpu.memory or 0)} of {size(gpu.memory_total or 0)}"
        figures = f"{memory}, {gpu.power or 0:.0f} W, {gpu.temperature or 0:.0f} °C"
        text = f"{bar(gpu.utilisation, 20)} {short_percent(gpu.utilisation):>4} {figures}"
        number, model = Span(f"{f'GPU {gpu.index}':<10}", "dim"), Span(f"  {gpu.name or ''}", "dim")
        lines.append(line(width, number, Span(text), model))
    ranks = rank_table(history, View(sort="name"), judge, width)
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
    if track.own is not None:
        lines.append(line(width, Span(f"{duration(track.own)} of a step without waiting for others")))
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
