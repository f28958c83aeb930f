"""The ranks of this host while they run: their processes, whether they do anything, how they were killed."""

from __future__ import annotations

import os
import signal

from ...common.frames import Frame
from ..process.processes import SECONDS_PER_TICK, Stat, below, process_table
from .memory import OutOfMemory, memory_limit

STOPPED = "T"  # proc(5); t, stopped by a tracer, does not last


class Ranks:
    """Every rank of this host, by the process of its wrapper (`rank.py`)."""

    def __init__(self) -> None:
        self._wrappers: dict[int, int] = {}
        self.ends: dict[int, Frame] = {}
        """How the ranks ended that are gone."""
        self._memory = OutOfMemory()

    def started(self, rank: int, wrapper: int) -> None:
        """A wrapper has said hello."""
        self._wrappers[rank] = wrapper

    def ended(self, rank: int, end: Frame) -> Frame:
        """The end of a rank, explained."""
        self._wrappers.pop(rank, None)
        self.ends[rank] = explained = self.explained(end)
        return explained

    def explained(self, end: Frame) -> Frame:
        """The end, with what this host knows of it: whether the kernel killed it for lack of memory."""
        if end["code"] != -signal.SIGKILL or not self._memory.explains_a_kill():
            return end
        return {**end, "out_of_memory": {"limit": memory_limit(self._memory.group)}}

    def memory_of(self, pid: int) -> None:
        """The ranks are in the memory group of another process."""
        self._memory = OutOfMemory(str(pid))

    def wrappers(self) -> dict[int, int]:
        """The process of each rank's wrapper, as of now."""
        return dict(self._wrappers)

    def are_there(self) -> bool:
        """Whether a rank of this host is still running."""
        return any(os.path.exists(f"/proc/{wrapper}") for wrapper in list(self._wrappers.values()))

    def programs(self) -> dict[int, tuple[int, str]]:
        """The process of each rank's program and its state; none for a rank whose program is not there."""
        table = process_table()
        return {
            rank: (pid, table[pid].state)
            for rank, wrapper in list(self._wrappers.items())
            for pid in [pid for pid, stat in table.items() if stat.parent == wrapper][:1]
        }

    def pulse(self) -> Frame:
        """For each rank: seconds of processor time of all its processes, and S, R, D or T."""
        table = process_table()
        return {
            str(rank): {"cpu": sum(stat.ticks for stat in stats) * SECONDS_PER_TICK, "state": _state(stats)}
            for rank, wrapper in list(self._wrappers.items())
            if (stats := [table[pid] for pid in [wrapper, *below(wrapper, table)] if pid in table])
        }


def _state(stats: list[Stat]) -> str:
    """Stopped, if the wrapper or its program (its first child) is; else the program's own."""
    states = [stat.state for stat in stats[:2]]
    return STOPPED if STOPPED in states else states[-1]
