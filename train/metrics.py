"""What the training measured, one JSON object per line and epoch, for programs to read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class EpochMetrics:
    """One line of metrics.jsonl."""

    epoch: int  # from 1
    step: int  # optimizer steps since the beginning of the training
    loss: float  # mean cross entropy over the epoch's training samples, in nats, each as it was met
    lr: float  # of the epoch's last step
    accuracy: float  # on the held-out samples, from 0 to 1
    samples_per_second: float  # training samples, over all ranks
    time: float  # seconds since 1970


class MetricsFile:
    """Appends to a metrics.jsonl; opened to go on after epoch n, it first drops what came later."""

    def __init__(self, path: Path, *, after_epoch: int) -> None:
        self.path = path
        before = path.read_text().splitlines() if path.exists() else []
        path.write_text("".join(f"{line}\n" for line in before if _epoch(line) <= after_epoch))

    def append(self, metrics: EpochMetrics) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(metrics)) + "\n")


def _epoch(line: str) -> float:
    """Return the epoch of a line; infinity for one that a killed run left unfinished."""
    try:
        return float(json.loads(line)["epoch"])
    except ValueError:
        return float("inf")
