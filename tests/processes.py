"""Whether a process of this machine lives; for the tests that demand that none is left."""

from __future__ import annotations

import time
from pathlib import Path

from tests.load import hold
from tests.waiting import wait_until


def is_alive(pid: int) -> bool:
    """Whether it runs: a zombie has ended. It may vanish between any two looks, so there is one look only."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_until_gone(pid: int, seconds: float | None = None) -> None:
    """Wait for the end of a process; on a quiet machine that takes at most so many seconds, if given."""
    began = time.monotonic()
    wait_until(lambda: not is_alive(pid), f"the end of process {pid}", patience=50.0, pause=0.02)
    if seconds is not None:
        hold("until a process was gone", time.monotonic() - began, seconds)
