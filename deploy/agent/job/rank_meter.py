"""Measures the ranks of this host: processors, memory, threads, state and bytes of all their processes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import NamedTuple

from ...common.frames import Frame
from ..processes import SECONDS_PER_TICK, ProcessStat, below, peek, process_table, read_stat

# The table of all processes is read so seldom that it costs at most this share of a core.
TABLE_SHARE = 0.001


class ProcessUse(NamedTuple):
    """A process, and the bytes that it has read and written."""

    stat: ProcessStat
    read: int
    written: int


class ProcessTrees:
    """The processes below a rank's wrapper, from the kernel's lists of children or the process table."""

    def __init__(self) -> None:
        # With CONFIG_PROC_CHILDREN.
        self._lists_children = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
        self._below: dict[int, list[int]] = {}
        self._again = 0.0

    def look(self, wrappers: list[int]) -> Mapping[int, list[int]]:
        """The processes below each wrapper, parents first."""
        if self._lists_children:
            return {wrapper: _children(wrapper) for wrapper in wrappers}
        now = time.monotonic()
        if now >= self._again or not all(self._below.get(wrapper) for wrapper in wrappers):
            began = time.thread_time()
            table = process_table()
            self._below = {wrapper: below(wrapper, table) for wrapper in wrappers}
            self._again = now + (time.thread_time() - began) / TABLE_SHARE
        return self._below


class RankMeter:
    """Reads the ranks of this host again and again."""

    def __init__(self) -> None:
        self._trees = ProcessTrees()
        self._seen: dict[int, tuple[float, dict[int, ProcessUse]]] = {}
        """The time of the last reading of each rank, and its processes then."""

    def read(self, wrappers: Mapping[int, int], at: float) -> list[Frame]:
        """The fields of a sample for each rank that runs. `wrappers`: the process of each rank's wrapper.

        `at`: seconds since boot (deploy/common/clock.py).
        """
        trees = self._trees.look([*wrappers.values()])
        ranks = []
        for rank, wrapper in sorted(wrappers.items()):
            processes = {pid: use for pid in trees.get(wrapper, []) if (use := read_use(pid))}
            if processes:
                ranks.append({"rank": rank, **self._rates(rank, processes, at), **_sums(wrapper, processes)})
        self._seen = {rank: seen for rank, seen in self._seen.items() if rank in wrappers}
        return ranks

    def _rates(self, rank: int, processes: dict[int, ProcessUse], at: float) -> Frame:
        """The rates of all processes together since the last reading; none at the first reading."""
        before, old = self._seen.get(rank, (at, {}))
        self._seen[rank] = (at, processes)
        if at <= before:
            return {}
        cpu = read = written = 0.0
        for pid, process in processes.items():
            last = old.get(pid)
            if last is None or last.stat.start != process.stat.start:
                if process.stat.start * SECONDS_PER_TICK < before:  # it is not new
                    continue
                last = None
            cpu += (process.stat.ticks - (last.stat.ticks if last else 0)) * SECONDS_PER_TICK
            read += process.read - (last.read if last else 0)
            written += process.written - (last.written if last else 0)
        seconds = at - before
        rates = {"cpu": cpu / seconds, "read": read / seconds, "written": written / seconds}
        return {name: max(0.0, round(rate, 3)) for name, rate in rates.items()}


def _sums(wrapper: int, processes: Mapping[int, ProcessUse]) -> Frame:
    program = next(iter(processes.values()))  # the wrapper's first child
    around = read_stat(wrapper)
    return {
        "memory": sum(process.stat.memory for process in processes.values()),
        "threads": sum(process.stat.threads for process in processes.values()),
        "state": "T" if around and around.state == "T" else program.stat.state,
    }


def read_use(pid: int) -> ProcessUse | None:
    """A process; None for one that has ended."""
    stat = read_stat(pid)
    if stat is None:
        return None
    lines = peek(f"/proc/{pid}/io", 256).splitlines()
    counts = dict(line.partition(": ")[::2] for line in lines)
    return ProcessUse(stat, int(counts.get("rchar", 0)), int(counts.get("wchar", 0)))


def _children(wrapper: int) -> list[int]:
    """Everything below a process that main threads have started, as programs do; parents first."""
    pids: list[int] = []
    level = [wrapper]
    while level:
        level = [int(child) for pid in level for child in peek(f"/proc/{pid}/task/{pid}/children").split()]
        pids += level
    return pids
