"""`slurm.json` in the folder of a run: the job of Slurm in which it runs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...core.wire.durable import write_atomically
from ...core.wire.files import read_regular

NAME = "slurm.json"


class Mark(NamedTuple):
    """The job of Slurm in which a run is."""

    number: str
    """Slurm's number of the job."""
    requeue: bool
    """Whether the user allowed Slurm to start it again."""
    is_batch: bool
    """Whether its driver is in this job, too."""
    python: str
    """The Python on its hosts, if the user named one."""


def write_mark(
    folder: Path, number: str, command: Sequence[str], *, requeue: bool = False, python: str = ""
) -> None:
    """Record the job of a run, and the command if it is a batch job. May raise OSError."""
    mark = {"slurm": number, "requeue": requeue, "command": command, "python": python}
    write_atomically(folder / NAME, json.dumps(mark, indent=2).encode(), 0o600)


def mark_of(folder: Path) -> Mark | None:
    """The job of Slurm of a run, which `muster stop` ends; None for another run, and that of another user."""
    try:
        mark = json.loads(read_regular(folder / NAME)) if (folder / NAME).stat().st_uid == os.getuid() else {}
        number = str(mark["slurm"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    is_batch, python = bool(mark.get("command")), str(mark.get("python") or "")
    return Mark(number, mark.get("requeue") is True, is_batch, python) if number.isdecimal() else None


def any_mark(runs: Path) -> bool:
    """Whether one of the runs of a folder has a job of Slurm."""
    return next(runs.glob(f"*/{NAME}"), None) is not None
