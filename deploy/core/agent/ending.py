"""Ends the processes of a job on this host: SIGTERM first, SIGKILL after a time.

A process with a handler for SIGTERM gets the grace of the job, to save its state; every other one dies at
once, or is killed after PLAIN_SECONDS (one that ignores SIGTERM). SIGTERM goes to a rank's program alone: its
children are left to it while it handles the signal, because it may need them (workers of a data loader, a
command that copies the checkpoint). A shell waits for its command before it runs its trap, so the command
gets the signal too. Launchers get it when no rank handles it any more: the end of their daemons would
end ranks that use MPI.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from ..wire.frames import Frame
from .processes import (
    PLAIN_SECONDS,
    STUCK_SECONDS,
    TERMINATE,
    ProcessStat,
    handles,
    name_of,
    process_table,
    send_signals,
)
from .ranks import UNKNOWN, Ranks

LAUNCHER_SECONDS = 0.5  # in place of PLAIN_SECONDS if no rank is left; torchrun would wait 30 s
SHELLS = {"sh", "bash", "dash", "busybox", "ksh", "mksh", "zsh"}
MOST = 1 << 10  # processes in an answer
Find = Callable[[], "list[int]"]


class Ending:
    """The end of what `find` lists, in steps. `grace` may change between two steps."""

    def __init__(self, find: Find, ranks: Ranks, grace: float, patience: float = 0.0) -> None:
        """`patience`: seconds to wait for what ranks left behind before that gets SIGTERM."""
        self._find, self._ranks = find, ranks
        self.grace, self.patience = grace, patience
        self.left: list[int] | None = None
        """Once it is over: the processes that could not be ended."""
        self._began = time.monotonic()
        self._first = 0.0
        """When the first process of a rank got SIGTERM; the grace begins then."""
        self._signalled: dict[int, float] = {}
        """When each process got SIGTERM, or was found to need none."""
        self._handling: set[int] = set()
        """Those that had a handler then. It may take the handler back while it saves."""
        self._handling_ranks: set[int | None] = set()
        self._killed: dict[int, float] = {}
        self.rank_of: dict[int, int | None] = {}
        """The rank that each process is of; None for a launcher."""
        self._now: dict[int, ProcessStat] = {}
        self.ended: list[Frame] = []
        """The programs of ranks, and processes that ranks left behind, which were not given more time."""
        self.behind: list[Frame] = []
        """The processes that ranks left behind, while they are waited for."""

    def go_on(self, seconds: float) -> bool:
        """Continue for at most so many seconds; returns whether it is over."""
        until = time.monotonic() + seconds
        while not self._turn():
            now = time.monotonic()
            if now >= until:
                return False
            # Reading the table of a large host often would take processor time from ranks that save.
            time.sleep(min(0.2, max(0.02, (now - self._began) / 20), until - now))
        return True

    def finish(self) -> list[int]:
        """Continue to the end; returns the processes that could not be ended."""
        while not self.go_on(60.0):
            pass
        return self.left or []

    @property
    def saving(self) -> list[int]:
        """The ranks of which a process still handles SIGTERM."""
        ranks = {self.rank_of.get(pid) for pid in self._handling if pid in self._now}
        return sorted(rank for rank in ranks if rank is not None and rank != UNKNOWN)

    def _turn(self) -> bool:
        """Send the signals that are due; returns whether it is over."""
        now, living = time.monotonic(), self._find()
        table = process_table() if living else {}
        self._now = {pid: table[pid] for pid in living if pid in table}
        for pid in self._now:
            if pid not in self.rank_of:
                self.rank_of[pid] = rank = self._ranks.of_process(pid, table)
                if rank in self._handling_ranks:  # the handler started it, perhaps to save
                    self._signalled[pid] = now
                    self._handling.add(pid)
        alive = [pid for pid in self._now if now - self._killed.get(pid, now) <= STUCK_SECONDS]
        if not alive:
            self.left = [*self._now]
            return True
        behind = [self._named(pid) for pid in alive if self._is_behind(pid)][:MOST]
        if self.behind and now - self._began >= self.patience:
            self.ended += [{**frame, "program": False, "seconds": now - self._began} for frame in behind]
        self.behind = behind if now - self._began < self.patience else []
        for pid in alive:
            if self.rank_of[pid] is not None and not self.behind:
                self._end_of_rank(pid, now)
        for pid in alive:
            if self.rank_of[pid] is None:
                self._end_launcher(pid, now)
        return False

    # -- processes of ranks --

    def _end_of_rank(self, pid: int, now: float) -> None:
        if pid in self._ranks.all_wrappers():
            # It ends with its program, and when it has passed on the last output.
            rank = self.rank_of[pid]
            if not any(self.rank_of[other] == rank for other in self._now if other != pid):
                self._kill_after(pid, now, PLAIN_SECONDS)
            return
        is_left = self._is_left_to_another(pid)
        if pid not in self._signalled and not is_left:
            self._terminate(pid, now)
        if not (is_left or pid in self._handling):
            self._kill_after(pid, now, PLAIN_SECONDS)
        elif self._is_late(now):
            self._kill(pid, now)

    def _is_late(self, now: float) -> bool:
        """Whether the grace is over."""
        return bool(self._first) and now - self._first >= self.grace

    def _terminate(self, pid: int, now: float) -> None:
        """Send SIGTERM to the program of a rank through its wrapper, which sends it only once."""
        self._signalled[pid], self._first = now, self._first or now
        if handles(pid, signal.SIGTERM):
            self._handling.add(pid)
            self._handling_ranks.add(self.rank_of[pid])
        parent = self._now[pid].parent
        through = parent if parent in self._ranks.all_wrappers() else pid
        send_signals(through, *TERMINATE)
        if through != pid:
            send_signals(pid, signal.SIGCONT)

    def _is_left_to_another(self, pid: int) -> bool:
        """Whether a process above it, of the same rank, handles SIGTERM."""
        parent = self._now[pid].parent
        while parent in self._now and self.rank_of[parent] is not None:
            if parent in self._handling and not _is_shell(parent):
                return True
            parent = self._now[parent].parent
        return False

    def _is_behind(self, pid: int) -> bool:
        """Whether a rank that has ended left this process behind."""
        rank = self.rank_of[pid]
        if rank is None or pid in self._ranks.all_wrappers():
            return False
        return rank == UNKNOWN or rank in self._ranks.ends

    # -- launchers --

    def _end_launcher(self, pid: int, now: float) -> None:
        ranks = [other for other in self._now if self.rank_of[other] is not None]
        if any(other in self._handling for other in ranks) and not self._is_late(now):
            return
        if pid not in self._signalled:
            self._signalled[pid] = now
            send_signals(pid, *TERMINATE)
        self._kill_after(pid, now, PLAIN_SECONDS if ranks else LAUNCHER_SECONDS)

    # -- SIGKILL --

    def _kill_after(self, pid: int, now: float, seconds: float) -> None:
        if now - self._signalled.setdefault(pid, now) > seconds:
            self._kill(pid, now)

    def _kill(self, pid: int, now: float) -> None:
        if pid not in self._killed:
            self._killed[pid] = now
            is_program = self._now[pid].parent in self._ranks.all_wrappers()
            if (is_program or pid in self._handling) and not self._is_left_to_another(pid):
                self._note_killed(pid, now)
        send_signals(pid, signal.SIGKILL)

    def _note_killed(self, pid: int, now: float) -> None:
        """Note once that a rank was killed."""
        frame = self._named(pid)
        if all(frame["rank"] != other["rank"] for other in self.ended) and len(self.ended) < MOST:
            self.ended.append({**frame, "program": True, "seconds": now - self._signalled.get(pid, now)})

    def _named(self, pid: int) -> Frame:
        rank = self.rank_of[pid]
        return {"pid": pid, "name": name_of(pid), "rank": None if rank == UNKNOWN else rank}


def _is_shell(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in SHELLS
    return False
