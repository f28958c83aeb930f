"""What each epoch measured: metrics.jsonl, one JSON object per epoch, for programs to read."""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class EpochMetrics:
    """One line of metrics.jsonl."""

    epoch: int  # from 1
    step: int  # optimizer steps since the beginning of the training
    loss: float  # mean over the epoch's training samples, each before its own step; cross entropy in nats
    lr: float  # of the epoch's last step
    accuracy: float  # on the held-out samples, from 0 to 1
    samples_per_second: float  # training samples, over all ranks
    time: float  # seconds since 1970


class MetricsFile:
    """Appends records to a JSON-lines file. Opening it keeps the lines whose `key` is at most `after`.

    Later lines belong to a training that is not continued. Where there are any, the whole earlier file is
    kept beside the new one, as `aside`: metrics.1.jsonl, or the next number that is free. The path has a
    complete file at every moment.
    """

    def __init__(self, path: Path, *, after: int, key: str = "epoch") -> None:
        self.path = path
        self.aside: Path | None = None
        lines = path.read_text().splitlines() if path.exists() else []
        numbers = [_number(line, key) for line in lines]
        if any(number is not None and number > after for number in numbers):
            names = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in count(1))
            self.aside = next(name for name in names if not name.exists())
            shutil.copyfile(path, self.aside)
        kept = [line for line, number in zip(lines, numbers, strict=True) if number and number <= after]
        _replace(path, "".join(f"{line}\n" for line in kept))

    def append(self, record: DataclassInstance) -> None:
        """Append `record`; a number that JSON cannot write, such as NaN, becomes null."""
        known = {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(record).items()
        }
        with self.path.open("a") as file:
            file.write(json.dumps(known, allow_nan=False) + "\n")


def _number(line: str, key: str) -> float | None:
    """Return the `key` of a line; None for a line that a killed run left unfinished."""
    try:
        return float(json.loads(line)[key])
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError):
        return None


def _replace(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".new")
    with beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
