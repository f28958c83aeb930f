"""`slurm.json` in the folder of a run: its batch job of Slurm."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...core.wire.durable import write_atomically
from ...core.wire.files import read_regular

NAME = "slurm.json"


class Mark(NamedTuple):
    """A run as a batch job."""

    number: str
    """Slurm's number of the job."""
    requeue: bool
    """Whether the user allowed Slurm to start it again."""


def write_mark(folder: Path, number: str, command: Sequence[str], *, requeue: bool) -> None:
    """Record the batch job of a run, and its command. May raise OSError."""
    text = json.dumps({"slurm": number, "requeue": requeue, "command": command}, indent=2)
    write_atomically(folder / NAME, text.encode(), 0o600)


def mark_of(folder: Path) -> Mark | None:
    """The batch job of a run; None for another run."""
    try:
        mark = json.loads(read_regular(folder / NAME))
        number = str(mark["slurm"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return Mark(number, mark.get("requeue") is True) if number.isdecimal() else None


def any_mark(runs: Path) -> bool:
    """Whether one of the runs of a folder is a batch job."""
    return next(runs.glob(f"*/{NAME}"), None) is not None
