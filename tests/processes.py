"""Tells whether a process of this machine is alive, for tests that require that no process is left."""

from __future__ import annotations

import time
from pathlib import Path

from tests.load import hold
from tests.waiting import wait_until


def is_alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not). One read decides, as it may end between two reads."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def command_of(pid: int) -> bytes:
    """The words of a process, each with a zero byte at its end; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_until_gone(pid: int, seconds: float | None = None) -> None:
    """Wait for the end of a process; on a quiet machine it must come within `seconds`, if given."""
    began = time.monotonic()
    wait_until(lambda: not is_alive(pid), f"the end of process {pid}", patience=50.0, pause=0.02)
    if seconds is not None:
        hold("until a process was gone", time.monotonic() - began, seconds)
