"""Show a run of Muster in TensorBoard: the curves of the job, and the samples of each host.

    pip install tensorboard
    python examples/run_to_tensorboard.py runs/JOB boards
    tensorboard --logdir boards

A run has JSON lines: docs/reference/json.md describes their fields. Each number becomes a curve.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter


def records(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a file, which a run may still write; none without the file."""
    try:
        with path.open() as file:
            yield from map(json.loads, file)
    except (FileNotFoundError, json.JSONDecodeError):
        return


def numbers(value: Any, tag: str) -> Iterator[tuple[str, float]]:
    """Every number in nested objects and lists, with its path: `samples/gpus/0/power`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield tag, value
    elif isinstance(value, (dict, list)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(part, f"{tag}/{key}")


def main(run: Path, boards: Path) -> None:
    writers: dict[str, SummaryWriter] = {}

    def write(folder: str, record: dict[str, Any], tag: str, step: int) -> None:
        name = re.sub(r"[^\w.-]|^\.+", "_", folder)  # the name of a host is not a path
        if name not in writers:
            writers[name] = SummaryWriter(str(boards / run.name / name))
        for path, number in numbers(record, tag):
            writers[name].add_scalar(path, number, step, record.get("time") or record.get("at"))

    for name in ("metrics", "steps"):
        for line, record in enumerate(records(run / f"{name}.jsonl")):
            folder = f"rank-{record['rank']:04d}" if "rank" in record else "job"
            write(folder, record, name, int(record.get("step", record.get("epoch", line))))
    first: float | None = None
    for record in records(run / "samples.jsonl"):
        first = record["at"] if first is None else first
        write(record["host"], record, "samples", round(record["at"] - first))
    for writer in writers.values():
        writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
