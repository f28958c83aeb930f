"""Reads the folder of a run, which may be unfinished, damaged, or of an older version."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.hosts.host_sample import SAMPLES
from ...core.job.bounded import (
    VALUE,
    Room,
    TooLargeError,
    content_of,
    lines_of,
    memory_of,
    pieces_of,
    value_of,
)
from ...core.text.printed import figures_of
from ...core.wire.files import open_regular
from ...core.wire.job_folders import describe
from ...core.wire.rank_logs import RankLog, attempt_in

RunRecord = Mapping[str, Any]
MOST_LINES = 200_000
"""Lines of a file of metrics or events that are read; a note names a file whose rest is left out."""
MOST_SAMPLES = 50_000
"""Samples that are read, spread over the whole run: an hour of 256 hosts has ten times as many."""
TAIL_BYTES = 6000
LONGEST_LINE = 500
"""Characters of a line that are searched for figures."""
PRINTED = "the output of rank 0"
MOST_MEMORY = 1 << 29
"""Bytes of memory that the records of one run may take, without its samples."""
MOST_SAMPLE_MEMORY = 5 << 27
"""Bytes of memory that its samples may take: MOST_SAMPLES of hosts with 8 ranks and 8 GPUs."""
MOST_NUMBER = 1e100
MOST_SHOWN = 1 << 22
"""Bytes of a plan or a verdict."""
_EVERY_BIT = (1 << 32) - 1  # of a CRC


@dataclass(frozen=True)
class Tail:
    """The end of a log of a rank."""

    rank: int
    host: str
    attempt: int
    stream: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Records:
    """The records in a run's folder. Nothing in it is trusted: texts come from hosts."""

    name: str
    state: RunRecord
    """As `muster status` prints it: job.json with state, ended, why. Empty for a folder without job.json."""
    result: RunRecord
    launches: tuple[RunRecord, ...]
    """The launch of each attempt."""
    plan: str
    verdict: str
    events: tuple[RunRecord, ...]
    metrics: tuple[RunRecord, ...]
    steps: tuple[RunRecord, ...]
    printed: tuple[RunRecord, ...]
    """Steps and losses that rank 0 printed; read only without metrics.jsonl and steps.jsonl."""
    pace: tuple[RunRecord, ...]
    """The pace of the ranks of a recorded job, a line for each look."""
    samples: tuple[RunRecord, ...]
    tails: tuple[Tail, ...]
    notes: tuple[str, ...] = ()
    """Files that could not be read, and parts that were left out."""


def number_of(value: object) -> float | None:
    """A number of a record; None for anything else, also for one beyond MOST_NUMBER."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -MOST_NUMBER < value < MOST_NUMBER else None


def list_of(value: object) -> list[Any]:
    """A list of a record; empty for anything else."""
    return value if isinstance(value, list) else []


def records_of(value: object) -> list[RunRecord]:
    """The objects in a list of a record."""
    return [item for item in list_of(value) if isinstance(item, dict)]


def read(folder: Path) -> Records:
    """The records of a run. A file that cannot be read becomes a note."""
    notes: list[str] = []
    room = Room(MOST_MEMORY)
    launches = sorted(folder.glob("launch*.json"), key=lambda path: attempt_in(path.name))
    metrics = tuple(_lines(folder / "metrics.jsonl", room, notes))
    steps = tuple(_lines(folder / "steps.jsonl", room, notes))
    plans = sorted(folder.glob("plan*.txt"), key=lambda path: attempt_in(path.name))
    return Records(
        name=folder.name,
        state=_state(folder, notes),
        result=_object(folder / "result.json", room, notes),
        launches=tuple(_object(path, room, notes) for path in launches),
        plan=_text(plans[-1], notes) if plans else "",
        verdict=_text(folder / "verdict.txt", notes),
        events=tuple(event for event in _lines(folder / "events.jsonl", room, notes) if _is_event(event)),
        metrics=metrics,
        steps=steps,
        printed=() if metrics or steps else tuple(_printed(folder / "logs", room, notes)),
        pace=tuple(_lines(folder / "pace.jsonl", room, notes)),
        samples=tuple(_samples(folder / SAMPLES, notes)),
        tails=tuple(_tails(folder / "logs", room, notes)),
        notes=tuple(notes),
    )


def _state(folder: Path, notes: list[str]) -> RunRecord:
    try:
        state = describe(folder)
    except (OSError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        notes.append(f"job.json cannot be read: {error}")
        return {}
    # This adds a note if the file is damaged or too large.
    if not state and _object(folder / "job.json", Room(MOST_MEMORY), notes):
        notes.append("job.json is not the record of a job")
    return state


def _is_event(record: RunRecord) -> bool:
    return (
        number_of(record.get("at")) is not None
        and isinstance(record.get("type"), str)
        and type(record.get("attempt")) is int
    )


def _text(path: Path, notes: list[str]) -> str:
    try:
        return content_of(path, MOST_SHOWN).decode(errors="replace")
    except TooLargeError as error:
        notes.append(f"{path.name} is left out: {error}")
    except FileNotFoundError:  # not every run has every file
        pass
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error}")
    return ""


def _object(path: Path, room: Room, notes: list[str]) -> RunRecord:
    try:
        content = content_of(path)
        if not room.take(memory_of(content)):
            raise TooLargeError("the records of this run exceed the memory limit")
        loaded = value_of(content)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{path.name} cannot be read: {error}")
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _lines(path: Path, room: Room, notes: list[str]) -> Iterator[RunRecord]:
    return _decoded(_lines_of(path, notes), path.name, room, notes)


def _lines_of(path: Path, notes: list[str]) -> Iterator[bytes]:
    """The lines of a file; none without the file."""
    try:
        with open_regular(path) as file:
            yield from lines_of(pieces_of(file))
    except FileNotFoundError:
        return
    except OSError as error:
        notes.append(f"{path.name} cannot be read: {error.strerror}")


def _decoded(lines: Iterable[bytes], name: str, room: Room, notes: list[str]) -> Iterator[RunRecord]:
    """The JSON objects of a file. Other lines are counted: the last may be half written."""
    bad = 0
    for number, line in enumerate(lines):
        if number >= MOST_LINES:
            notes.append(f"{name}: only its first {MOST_LINES} lines are shown")
            break
        if not room.take(memory_of(line)):
            notes.append(f"{name}: only its first {number} lines are shown: the memory limit is reached")
            break
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            yield record
        else:
            bad += 1
    if bad:
        notes.append(f"{name}: {bad} {'line is' if bad == 1 else 'lines are'} no JSON object")


def _samples(path: Path, notes: list[str]) -> Iterator[RunRecord]:
    """The samples, evenly thinned out if there are too many."""
    mask, held = 0, 0
    kept: list[bytes] = []
    for line in _lines_of(path, notes):
        # By the hash of the line: every n-th line could always be of the same host.
        if not zlib.crc32(line) & mask:
            kept.append(line)
            held += memory_of(line)
            while (len(kept) > MOST_SAMPLES or held > MOST_SAMPLE_MEMORY) and mask < _EVERY_BIT:
                mask = mask << 1 | 1
                kept = [line for line in kept if not zlib.crc32(line) & mask]
                held = sum(map(memory_of, kept))
            if mask == _EVERY_BIT:  # lines forged to have one hash cannot be thinned out
                notes.append(f"{path.name} is not a file of samples: the rest is left out")
                break
    if mask:
        notes.append(f"{path.name}: of {mask + 1} samples one is shown, so that short peaks may be missing")
    yield from _decoded(kept, path.name, Room(MOST_SAMPLE_MEMORY), notes)


def _tails(logs: Path, room: Room, notes: list[str]) -> Iterator[Tail]:
    """The last lines of each log, of the last attempt in which a rank left one."""
    last: dict[tuple[int, str], tuple[int, str, Path]] = {}
    for path in sorted(logs.glob("rank-*@*")):
        if log := RankLog.of_name(path.name):
            key = (log.rank, log.stream)
            if key not in last or log.attempt >= last[key][0]:
                last[key] = (log.attempt, log.host, path)
    for (rank, stream), (attempt, host, path) in sorted(last.items()):
        if lines := _end_of(path):
            if not room.take(sum(VALUE + len(line) for line in lines)):
                notes.append(f"logs: only those before rank {rank} are shown: the memory limit is reached")
                return
            yield Tail(rank, host, attempt, stream, lines)


def _printed(logs: Path, room: Room, notes: list[str]) -> Iterator[RunRecord]:
    """The losses that rank 0 printed in its last attempt, each with its step and epoch."""
    parsed = (RankLog.of_name(path.name) for path in logs.glob("rank-0000@*.out"))
    last = max((log for log in parsed if log and not log.rank), key=lambda log: log.attempt, default=None)
    if last is None:
        return
    at = dict[str, Any]()  # of this line, or of an earlier one
    with contextlib.suppress(OSError, TooLargeError), open_regular(logs / last.name) as file:
        for number, line in enumerate(lines_of(pieces_of(file))):
            if number >= MOST_LINES:
                notes.append(f"{last.name}: only the figures of its first {number} lines are shown")
                return
            last_redrawn = line.rstrip().rpartition(b"\r")[2]  # of a bar
            figures = figures_of(last_redrawn.decode(errors="replace")[:LONGEST_LINE])
            now = {"step": figures.step, "epoch": figures.epoch}
            at |= {name: value for name, value in now.items() if value is not None}
            if figures.loss is not None and room.take(4 * VALUE):
                yield {**at, "loss": figures.loss}


def _end_of(path: Path) -> tuple[str, ...]:
    with contextlib.suppress(OSError), open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read(TAIL_BYTES).decode(errors="replace").splitlines()
        return tuple(line.rstrip() for line in (lines[1:] if size > TAIL_BYTES else lines))
    return ()
