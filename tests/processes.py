"""Looks at processes of this machine, and ends them: tests require that no process is left."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from muster.deploy.core.agent.processes import below, process_table
from tests.load import hold
from tests.waiting import wait_until


def is_alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not). One read decides, as it may end between two reads."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def trees(roots: Sequence[int]) -> list[int]:
    """Those of these processes that live, and every living process below them."""
    table = process_table()
    return [pid for root in roots if root in table for pid in (root, *below(root, table))]


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


def kill_all(root: int) -> None:
    """Kill a process and all below it: no group has those that make sessions of their own."""
    stopped: list[int] = []
    while new := [pid for pid in trees([root]) if pid not in stopped]:
        stopped += new
        _signal_each(new, signal.SIGSTOP)
        # A process that is in fork(2) stops after it: then the new one is seen by the next look.
        wait_until(
            lambda: not _running(new), lambda: f"processes that have stopped: {_running(new)}", pause=0.0
        )
    _signal_each(stopped, signal.SIGKILL)


def _running(pids: Iterable[int]) -> list[int]:
    table = process_table()
    return [pid for pid in pids if pid in table and table[pid].state not in "TtZX"]


def _signal_each(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
