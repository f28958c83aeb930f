"""Measures the ranks of this host: processors, memory, threads, state and bytes of all their processes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import NamedTuple

from ...common.frames import Frame
from ..host.meter import text
from ..processes import SECONDS_PER_TICK, below, process_table

PAGE = os.sysconf("SC_PAGE_SIZE")
# The table of all processes is read so seldom that it costs no more than this share of a core.
TABLE_SHARE = 0.001


class Process(NamedTuple):
    """One process in proc(5): its counters grow as long as `start`, in ticks since boot, is the same."""

    state: str
    start: int
    seconds: float
    threads: int
    memory: int
    read: int
    written: int


NOTHING = Process("", 0, 0.0, 0, 0, 0, 0)


class Trees:
    """Which processes are below a rank's wrapper. The kernel tells each one's children, where it can."""

    def __init__(self) -> None:
        self._can_ask = os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # CONFIG_PROC_CHILDREN
        self._below: dict[int, list[int]] = {}
        self._again = 0.0

    def look(self, wrappers: list[int]) -> Mapping[int, list[int]]:
        """The processes below each wrapper, parents first."""
        if self._can_ask:
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
        self._trees = Trees()
        self._seen: dict[int, tuple[float, dict[int, Process]]] = {}
        """When each rank was read last, and its processes then."""

    def read(self, wrappers: Mapping[int, int], at: float) -> list[Frame]:
        """The fields of a sample for each rank that runs. `wrappers`: the process of each rank's wrapper.

        `at`: seconds since boot (deploy/common/clock.py).
        """
        trees = self._trees.look([*wrappers.values()])
        ranks = []
        for rank, wrapper in sorted(wrappers.items()):
            known = ((pid, read_process(pid)) for pid in trees.get(wrapper, []))
            processes = {pid: process for pid, process in known if process}
            if processes:
                ranks.append({"rank": rank, **self._rates(rank, processes, at), **_sums(wrapper, processes)})
        self._seen = {rank: seen for rank, seen in self._seen.items() if rank in wrappers}
        return ranks

    def _rates(self, rank: int, processes: dict[int, Process], at: float) -> Frame:
        """What all processes used since the last reading, in each second; nothing at the first reading."""
        before, earlier = self._seen.get(rank, (at, {}))
        self._seen[rank] = (at, processes)
        if at <= before:
            return {}
        cpu = read = written = 0.0
        for pid, process in processes.items():
            last = earlier.get(pid)
            if last is None or last.start != process.start:
                if process.start * SECONDS_PER_TICK < before:  # it is not new, only found late
                    continue
                last = NOTHING
            cpu += process.seconds - last.seconds
            read += process.read - last.read
            written += process.written - last.written
        seconds = at - before
        rates = {"cpu": cpu / seconds, "read": read / seconds, "written": written / seconds}
        return {name: max(0.0, round(rate, 3)) for name, rate in rates.items()}


def _sums(wrapper: int, processes: Mapping[int, Process]) -> Frame:
    program = next(iter(processes.values()))  # the wrapper's first child
    around = read_process(wrapper)
    return {
        "memory": sum(process.memory for process in processes.values()),
        "threads": sum(process.threads for process in processes.values()),
        "state": "T" if around and around.state == "T" else program.state,
    }


def read_process(pid: int) -> Process | None:
    """A process; None for one that has ended."""
    fields = text(f"/proc/{pid}/stat", 1024).rpartition(")")[2].split()  # the name may hold anything
    if len(fields) < 22 or fields[0] in {"Z", "X"}:
        return None
    counts = dict(line.partition(": ")[::2] for line in text(f"/proc/{pid}/io", 256).split("\n") if line)
    return Process(
        state=fields[0],
        start=int(fields[19]),
        seconds=(int(fields[11]) + int(fields[12])) * SECONDS_PER_TICK,
        threads=int(fields[17]),
        memory=int(fields[21]) * PAGE,
        read=int(counts.get("rchar", 0)),
        written=int(counts.get("wchar", 0)),
    )


def _children(wrapper: int) -> list[int]:
    """Everything below a process that main threads have started, as programs do; parents first."""
    pids: list[int] = []
    level = [wrapper]
    while level:
        level = [int(word) for pid in level for word in text(f"/proc/{pid}/task/{pid}/children").split()]
        pids += level
    return pids
