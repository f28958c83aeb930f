"""Processes of this host: start, wait for, find and end everything that a job started here."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")
SECONDS_PER_TICK = 1 / os.sysconf("SC_CLK_TCK")  # of processor time, in proc(5)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
# How processes are ended, here and in ending.py.
PLAIN_SECONDS = 2.0  # from SIGTERM to SIGKILL, for a process that gets no grace
TERMINATE = (signal.SIGTERM, signal.SIGCONT)  # a stopped process handles nothing
STUCK_SECONDS = 4.0  # a process that outlives SIGKILL by this much is stuck in the kernel: report it


def prctl(option: int, value: int) -> None:
    """Call prctl(2). A failure is an error of the platform, not of the job."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def die_with_agent() -> None:
    """In a child, before exec: have the kernel kill it when the agent ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class ProcessStat(NamedTuple):
    """A process as in proc(5). Its counters grow as long as `start`, in ticks since boot, is the same."""

    state: str
    """S where only the first thread has ended."""
    parent: int
    faults: int
    """Major page faults: pages that came from the disk."""
    ticks: int
    """Of processor time."""
    threads: int
    start: int
    memory: int
    """Resident bytes."""


def read_stat(pid: int | str) -> ProcessStat | None:
    """A process of which a thread lives; None for any other.

    A killed process is a zombie when its first thread has ended, and keeps its ports until its last one has.
    """
    fields = peek(f"/proc/{pid}/stat", 1024).rpartition(")")[2].split()  # the name may hold anything
    if len(fields) < 22:
        return None
    threads, ended = int(fields[17]), fields[0] in ("Z", "X")
    if ended and threads <= 1:  # the one that has ended counts
        return None
    user, system = map(int, fields[11:13])
    return ProcessStat(
        state="S" if ended else fields[0],
        parent=int(fields[1]),
        faults=int(fields[9]),
        ticks=user + system,
        threads=threads,
        start=int(fields[19]),
        memory=int(fields[21]) * PAGE,
    )


def peek(path: str, most: int = 1 << 16) -> str:
    """The beginning of a file of /proc or /sys, or nothing where it cannot be read.

    The kernel gives a long table page by page; a file of less than a page is read at once.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        content = os.read(descriptor, most)
        while PAGE <= most > len(content) and (more := os.read(descriptor, most - len(content))):
            content += more
        return content.decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def process_table() -> dict[int, ProcessStat]:
    """Every process of this host of which a thread lives."""
    pids = filter(str.isdigit, os.listdir("/proc"))
    return {int(pid): stat for pid in pids if (stat := read_stat(pid))}


def below(pid: int, table: Mapping[int, ProcessStat]) -> list[int]:
    """Every process of the table below this one, parents first."""
    children: dict[int, list[int]] = {}
    for child, stat in sorted(table.items()):
        children.setdefault(stat.parent, []).append(child)
    pids: list[int] = []
    level = children.get(pid, [])
    while level:
        pids += level
        level = [grandchild for child in level for grandchild in children.get(child, [])]
    return pids


def descendants() -> list[int]:
    """Every living process below this one. As subreaper, that is everything the job started here."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # no child, not even an ended one: the process table need not be read
        return []
    return below(os.getpid(), process_table())


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal, or blocks it for sigwait(3) or signalfd(2).

    proc(5), SigCgt and SigBlk: bit 0 is signal 1.
    """
    masks = re.findall(r"^Sig(?:Cgt|Blk):\s*([0-9a-f]+)$", peek(f"/proc/{pid}/status"), re.MULTILINE)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def end_descendants() -> list[int]:
    """Send SIGTERM, then SIGKILL, to every process below this one; returns those that are stuck.

    For commands. The processes of a job get their grace (ending.py).
    """
    started = time.monotonic()
    signalled: set[int] = set()
    while True:
        living = descendants()
        elapsed = time.monotonic() - started
        if not living or elapsed > PLAIN_SECONDS + STUCK_SECONDS:
            return living
        for pid in living:
            if elapsed > PLAIN_SECONDS:
                send_signals(pid, signal.SIGKILL)
            elif pid not in signalled:
                signalled.add(pid)
                send_signals(pid, *TERMINATE)
        time.sleep(0.02)


def send_signals(pid: int, *numbers: int) -> None:
    """Send signals to a process, which may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        for number in numbers:
            os.kill(pid, number)


def name_of(pid: int) -> str:
    """The name of a process, also of one that has ended but is not reaped."""
    return peek(f"/proc/{pid}/comm", 64).strip() or f"process {pid}"


class Reaper:
    """Starts children, waits for them and for adopted processes, and calls back at the end of each.

    `on_end`: gets the name and the exit code of each adopted process that a signal has ended.
    """

    def __init__(self, on_end: Callable[[str, int], None]) -> None:
        self._on_end = on_end
        self._changed = threading.Condition()
        self._reaping, self._left = threading.Lock(), (0, 0.0)
        self._watched: dict[int, tuple[subprocess.Popen[bytes], Callable[[int], None]]] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def start(
        self, argv: list[str], on_end: Callable[[int], None], **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a child; at its end call back with its exit code (negative for a signal)."""
        with self._changed:  # held until it is registered: a child may end at once
            process = subprocess.Popen(argv, **options)
            self._watched[process.pid] = (process, on_end)
            self._changed.notify()
        return process

    def reap_all(self) -> None:
        """Call back for every process that has ended so far."""
        with self._reaping:
            while self._reap():
                pass

    def _run(self) -> None:
        while True:
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:
                with self._changed:
                    self._changed.wait(0.5)
                continue
            with self._reaping:
                if not self._reap():
                    time.sleep(0.01)

    def _is_awaited(self, pid: int) -> bool:
        """Whether a handler waits for this child of `subprocess.run`, which would take its status for 0.

        Such a child is in the group of this process. One whose caller does not wait must not delay others.
        """
        if self._left[0] != pid:
            self._left = pid, time.monotonic()
        is_own = pid not in self._watched and os.getpgid(pid) == os.getpgrp()
        return is_own and time.monotonic() - self._left[1] < 1.0

    def _reap(self) -> bool:
        """Wait for a process that has ended, and call back; returns whether there was one."""
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is None or self._is_awaited(ended.si_pid):
                return False
            name = name_of(ended.si_pid)  # a process has its name until it is reaped
            pid, status = os.waitpid(ended.si_pid, 0)
        except (ChildProcessError, ProcessLookupError):
            return False
        with self._changed:
            process, on_end = self._watched.pop(pid, (None, None))
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if process and on_end:
            process.returncode = code
            on_end(code)
        elif code < 0:
            self._on_end(name, code)
        return True
