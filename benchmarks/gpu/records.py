"""What a part of the proof found: figures, and checks that hold or do not."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["pass", "fail", "figure", "skip"]


@dataclass(frozen=True)
class Proof:
    """What every part needs: where its files go, the device of its tensors, whether to be quick."""

    out: Path
    device: str = "cuda"
    short: bool = False
    patience: float = 1.0
    """By how much every limit of time is longer."""

    @property
    def on_gpu(self) -> bool:
        """Whether the tensors are on a GPU."""
        return self.device != "cpu"


@dataclass(frozen=True)
class Record:
    """One line of a part: `name`, the outcome, a value with its unit, and what was expected or why."""

    name: str
    outcome: Outcome
    value: Any = None
    unit: str = ""
    note: str = ""
    at: float = 0.0
    """Seconds since the part began."""


@dataclass
class Recorder:
    """Appends each record to a file at once, so that a time-out loses none."""

    file: Path
    records: list[Record] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def check(self, name: str, holds: bool, value: Any = None, *, unit: str = "", note: str = "") -> bool:
        """Record a statement that must hold; returns whether it does."""
        self._write(Record(name, "pass" if holds else "fail", value, unit, note))
        return holds

    def figure(self, name: str, value: Any, unit: str = "", *, note: str = "") -> None:
        """Record a measured value that has no limit."""
        self._write(Record(name, "figure", value, unit, note))

    def skip(self, name: str, why: str) -> None:
        """Record what this machine cannot show."""
        self._write(Record(name, "skip", note=why))

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A step of a part: an exception in it is a failed check, and the next step runs."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it is in the log, and the page names it
            traceback.print_exc()
            self.check(name, holds=False, note=f"{type(error).__name__}: {error}")

    def _write(self, record: Record) -> None:
        record = replace(record, at=round(time.monotonic() - self.began, 2))
        self.records.append(record)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record), default=str) + "\n")


def read(file: Path) -> list[Record]:
    """The records of a part; a last line that is not whole is left out."""
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    return [Record(**json.loads(line)) for line in lines]
