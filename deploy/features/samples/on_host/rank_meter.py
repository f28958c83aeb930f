"""Measures the ranks of this host: processors, memory, threads, state and bytes of all their processes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ....core.agent.processes import SECONDS_PER_TICK, ProcessStat, below, peek, process_table, read_stat
from ....core.wire.frames import Frame

# The table of all processes is read so seldom that it costs at most this share of a core.
TABLE_SHARE = 0.001
LOOKS = 3
"""How often the command line of a process is read: a shell replaces itself by the program that it starts."""
MOST_COMMAND, MOST_TEXT = 4096, 120
LAUNCHERS = {
    "torchrun",
    "mpirun",
    "mpiexec",
    "orterun",
    "prterun",
    "deepspeed",
    "horovodrun",
    "accelerate launch",
}
_INTERPRETER = re.compile(r"python[\d.]*|(?:ba|da)?sh")
_MODULES = {
    **dict.fromkeys(("torch.distributed.run", "torch.distributed.launch"), "torchrun"),
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
_OF_HOSTS = {
    "nnodes",
    "rdzv-endpoint",
    "node-rank",
    "num-machines",
    "machine-rank",
    "host",
    "hostfile",
    "machinefile",
}
"""Options of a launcher that starts ranks of one job on several hosts."""


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
        self._launchers: dict[int, str] = {}
        self._looks: dict[tuple[int, int], int] = {}
        """How often each process was looked at, by its number and start."""

    def read(self, wrappers: Mapping[int, int], at: float) -> list[Frame]:
        """The fields of a sample for each rank that runs. `wrappers`: the process of each rank's wrapper.

        `at`: seconds since boot (core/wire/clock.py).
        """
        trees = self._trees.look([*wrappers.values()])
        ranks = []
        for rank, wrapper in sorted(wrappers.items()):
            processes = {pid: use for pid in trees.get(wrapper, []) if (use := read_use(pid))}
            if processes:
                launcher = self._launcher(rank, processes)
                started = {"launcher": launcher} if launcher else {}
                rates, sums = self._rates(rank, processes, at), _sums(wrapper, processes)
                ranks.append({"rank": rank, **rates, **sums, **started})
        self._seen = {rank: seen for rank, seen in self._seen.items() if rank in wrappers}
        living = {(pid, use.stat.start) for _, uses in self._seen.values() for pid, use in uses.items()}
        self._looks = {process: looks for process, looks in self._looks.items() if process in living}
        return ranks

    def _launcher(self, rank: int, processes: Mapping[int, ProcessUse]) -> str | None:
        """The launcher of ranks that this rank has started, with its program; None without one."""
        for pid, process in processes.items():
            key = (pid, process.stat.start)
            self._looks[key] = looks = self._looks.get(key, 0) + 1
            if rank in self._launchers or looks > LOOKS:
                continue
            if launcher := launcher_of(peek(f"/proc/{pid}/cmdline", MOST_COMMAND).split("\0")):
                self._launchers[rank] = launcher
        return self._launchers.get(rank)

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


def launcher_of(argv: Sequence[str]) -> str:
    """`torchrun train.py` for a process that starts ranks on this host alone; else empty."""
    words = [*argv]
    if _INTERPRETER.fullmatch(os.path.basename(words[0])):
        del words[0]
        while words and words[0].startswith("-") and words[0] != "-m":
            del words[0]
    name = os.path.basename(words[0]) if words else ""
    if name == "-m" and len(words) > 1:
        name = _MODULES.get(words[1], "")
    elif name == "accelerate":
        name = " ".join((name, *words[1:2]))
    options = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in words if word.startswith("-")}
    alone = {"--nnodes=1"} & {*words} or "--nnodes 1" in " ".join(words)
    if name not in LAUNCHERS or (not alone and _OF_HOSTS & options):
        return ""
    program = next((word for word in words[1:] if word.endswith(".py")), "")
    return f"{name} {program}".strip()[:MOST_TEXT]


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
