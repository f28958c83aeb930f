"""The arrivals of this host's ranks at their last collectives, and the causes of their delays.

The driver compares all hosts (features/why/lateness.py). It asks every few seconds, so this must be cheap.
Standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ....core.agent.cgroups import group_files
from ....core.agent.processes import peek
from ....core.wire.frames import Frame
from ....core.wire.paths import MusterPaths
from .records import read_ring, read_trace

MOST = 256  # of a rank in a group
MOST_OF_HOST = 60_000  # of all ranks: an answer has room for half a million values
MOST_TRACKS = 16
TRACE_SECONDS = 1.0
SETUP = "setup"  # the group of a call that makes groups (in_rank/muster_recorder.py)
_CLOCK = 0.001  # seconds: both times are of the same clock, written one after the other


class ArrivalMeter:
    """Reads the records of all ranks again and again, for every job of this host.

    The records are files, so that this needs no help of the job's own agent.
    """

    def __init__(self, muster_root: Path) -> None:
        self._paths = MusterPaths(str(muster_root))
        self._pressure = PressureMeter()

    def do_arrivals(self, request: Frame, payload: bytes) -> Frame:
        """The arrivals of each rank, also of ended ones, and the cost of reading them.

        None if the job is not, or no longer, on this host, or does not record.
        """
        began = time.thread_time()
        try:
            folder = Path(self._paths.job(request["job"]).agent(request["host"])).read_text()
            names = os.listdir(folder)
        except FileNotFoundError:
            return {}
        rings: dict[int, Frame] = {int(name[5:]): {} for name in names if re.fullmatch(r"ring-\d{1,7}", name)}
        arrivals = {}
        most = max(8, min(MOST, MOST_OF_HOST // max(1, len(rings))))
        for rank in sorted(rings):
            rings[rank] = ring = read_ring(os.path.join(folder, f"ring-{rank}"), most)
            if "missing" not in ring:
                trace = read_trace(os.path.join(folder, f"torch-{rank}"), most, TRACE_SECONDS)
                arrivals[str(rank)] = summary(ring, trace)
        pids = {rank: ring["pid"] for rank, ring in rings.items() if isinstance(ring.get("pid"), int)}
        for rank, pressure in self._pressure.read(pids).items():
            if str(rank) in arrivals:
                arrivals[str(rank)]["pressure"] = pressure
        return {"ranks": arrivals, "cost": time.thread_time() - began}


def summary(ring: Frame, trace: list[Frame]) -> Frame:
    """The sites and tracks of a rank, from its ring and from torch's own record."""
    entries = [entry for entry in ring["entries"] if entry["kind"] != "message"]
    calls = [entry for entry in entries if entry["kind"] == "call"]
    counts = {(group["group"], group["kind"]): group["count"] for group in ring["groups"]}
    members = {group["group"]: group["ranks"] for group in ring["groups"]}
    set_up = [[call["at"], call["end"]] for call in calls if call["group"] == SETUP and call["end"]][-1:]
    sites: dict[tuple[Any, ...], int] = {}
    tracks: dict[tuple[str, str], Frame] = {}
    for entry in [*entries, *_with_lines(trace, calls)]:
        key = entry["group"], entry["kind"]
        ranks = members.get(key[0], "")
        track = tracks.setdefault(
            key,
            {"group": key[0], "kind": key[1], "ranks": ranks, "count": 0, "seqs": [], "at": [], "sites": []},
        )
        # Does not wait: a call that returned while its work continues, and a backend's work outside any
        # recorded call.
        waits = _in_call(entry) if entry["kind"] == "call" else bool(entry.get("where"))
        site = entry["op"], entry.get("where", ""), entry.get("bytes", 0), waits
        track["count"] = max(counts.get(key, 0), entry["seq"])
        track["seqs"].append(entry["seq"])
        track["at"].append(round(entry["at"], 6))
        track["sites"].append(sites.setdefault(site, len(sites)))
    found = {"sites": [list(site) for site in sites], "tracks": [*tracks.values()][:MOST_TRACKS]}
    return {**found, **({"set_up": set_up[0]} if set_up else {})}


def _with_lines(trace: list[Frame], calls: list[Frame]) -> Iterable[Frame]:
    """The entries of torch's record, each with the line of its call."""
    begins = [call["at"] for call in calls]
    for entry in trace:
        index = bisect_right(begins, entry["at"] + _CLOCK) - 1
        inside = index >= 0 and entry["at"] <= (calls[index]["end"] or entry["at"]) + _CLOCK
        waits = inside and _in_call(calls[index])
        yield {**entry, "where": calls[index]["where"]} if waits else entry


def _in_call(entry: Frame) -> bool:
    """Whether a call returns only when the collective is complete."""
    return entry["state"] != "a" and not entry.get("wait")


# -- what keeps a rank from running: other threads on its processor, a quota of its cgroup --

NANO = 1e-9


class Counters(NamedTuple):
    """The kernel's counters of a process: seconds, and by cgroup its periods and those throttled."""

    at: float
    queued: float
    quotas: Mapping[str, tuple[int, int]]


class PressureMeter:
    """Compares each reading with the one before."""

    def __init__(self) -> None:
        self._last: dict[int, Counters] = {}

    def read(self, programs: Mapping[int, int]) -> dict[int, Frame]:
        """The shares of the time since the last reading, by rank. `programs`: the process of each rank."""
        counted = {rank: counters(pid) for rank, pid in programs.items()}
        now = {rank: numbers for rank, numbers in counted.items() if numbers}
        shares = {
            rank: _between(self._last[rank], numbers) for rank, numbers in now.items() if rank in self._last
        }
        self._last = now
        return shares


def _between(before: Counters, now: Counters) -> Frame:
    seconds = max(now.at - before.at, 0.001)
    throttled = [
        (times - before.quotas[path][1]) / (periods - before.quotas[path][0])
        for path, (periods, times) in now.quotas.items()
        if path in before.quotas and periods > before.quotas[path][0]
    ]
    return {
        "queued": _share((now.queued - before.queued) / seconds),
        "throttled": _share(max(throttled)) if throttled else None,
    }


def counters(pid: int, root: str = "") -> Counters | None:
    """The counters of a process now; None if the kernel has none, or the process is gone.

    `root`: a folder with the files of another machine, for tests.
    """
    counts = [*map(int, peek(f"{root}/proc/{pid}/schedstat", 128).split())]
    if len(counts) < 2:
        return None
    return Counters(time.monotonic(), counts[1] * NANO, dict(_quotas(pid, root)))


def _quotas(pid: int, root: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """The cgroups of a process that have a quota: itself and those above, as far as they can be seen."""
    for path in group_files("cpu", "cpu.stat", "cpu.stat", str(pid), root):
        if counted := _counted(peek(path, 1024)):
            yield path, counted


def _counted(stat: str) -> tuple[int, int] | None:
    with contextlib.suppress(ValueError):
        numbers = {name: int(value) for name, value in (line.split() for line in stat.split("\n") if line)}
        if numbers.get("nr_periods"):
            return numbers["nr_periods"], numbers.get("nr_throttled", 0)
    return None


def _share(value: float) -> float:
    return round(min(1.0, max(0.0, value)), 4)
