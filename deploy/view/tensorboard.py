"""The records of a run as TensorBoard's files, which `tensorboard --logdir FOLDER` shows.

They are written by the package tensorboard, which is imported only when somebody asks for these files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError
from .page.metrics import AXES, axis_of
from .page.records import Records, RunRecord, number_of

MISSING = "--tensorboard needs the package tensorboard beside Muster: pip install tensorboard"
MOST_RUNS = 300
"""Folders that TensorBoard shows beside each other; those of more hosts are left out, and said so."""
_LISTS = {"gpus": ("gpu", "index"), "ranks": ("rank-", "rank")}
"""Lists in a sample: how a tag begins, and what numbers the entries."""


class Scalar(NamedTuple):
    """A number at a step. `run`: a name for the curves of one host or rank, empty for those of the job."""

    run: str
    tag: str
    step: int
    at: float
    """Seconds since 1970; 0 where it is not known."""
    value: float


def scalars(records: Records) -> Iterator[Scalar]:
    """Every number of metrics.jsonl, steps.jsonl and the samples.

    The step of a sample is the seconds since the first one.
    """
    yield from _of_lines("metrics", records.metrics)
    yield from _of_lines("step", records.steps)
    times = [at for sample in records.samples if (at := number_of(sample.get("at"))) is not None]
    first = min(times, default=0.0)
    for sample in records.samples:
        at, host = number_of(sample.get("at")), sample.get("host")
        if at is not None and isinstance(host, str):
            for tag, value in _of_sample(sample):
                yield Scalar(host, tag, round(at - first), at, value)


def _of_lines(name: str, lines: tuple[RunRecord, ...]) -> Iterator[Scalar]:
    axis = axis_of(lines)
    for place, line in enumerate(lines):
        step = number_of(line.get(axis)) if axis != "line" else float(place)
        at, rank = number_of(line.get("time")) or 0.0, line.get("rank")
        run = f"rank-{rank:04d}" if type(rank) is int else ""
        for key, value in line.items():
            number = number_of(value)
            if number is not None and step is not None and key not in {*AXES, "rank"}:
                yield Scalar(run, f"{name}/{key}", round(step if axis != "time" else place), at, number)


def _of_sample(sample: RunRecord) -> Iterator[tuple[str, float]]:
    for key, value in sample.items():
        if key in {"at", "attempt"}:
            continue
        if isinstance(value, Mapping):
            yield from _numbers(key, value)
        elif key in _LISTS and isinstance(value, list):
            prefix, number = _LISTS[key]
            for entry in value:
                if isinstance(entry, Mapping) and type(entry.get(number)) is int:
                    yield from _numbers(f"{prefix}{entry[number]}", entry, number)
        elif (known := number_of(value)) is not None:
            yield f"host/{key}", known


def _numbers(prefix: str, entry: Mapping[str, Any], but: str = "") -> Iterator[tuple[str, float]]:
    for key, value in entry.items():
        if key not in {but, "time"} and (known := number_of(value)) is not None:
            yield f"{prefix}/{key}", known


def write_tensorboard(records: Records, folder: Path) -> str:
    """Write the files to `folder`/JOB, anew; returns a line about them. `UsageError` without tensorboard."""
    try:
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415  # an optional package
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415
    except ImportError:
        raise UsageError(MISSING) from None
    place = folder / records.name
    for old in place.rglob("events.out.tfevents.*"):
        old.unlink()
    writers: dict[str, Any] = {}
    left_out: set[str] = set()
    try:
        for run, tag, step, at, value in scalars(records):
            if run not in writers:
                if len(writers) >= MOST_RUNS:
                    left_out.add(run)
                    continue
                writers[run] = EventFileWriter(str(place / re.sub(r"[^\w.-]|^\.+", "_", run)))
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writers[run].add_event(Event(wall_time=at, step=step, summary=summary))
    finally:
        for writer in writers.values():
            writer.close()
    less = f", without {len(left_out)} more hosts" if left_out else ""
    return (
        f"{place}: for tensorboard --logdir {folder}{less}" if writers else f"{records.name} has no numbers"
    )
