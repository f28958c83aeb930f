"""What this host knows of its ranks when somebody asks why the job stands still.

Of each rank: its process as proc(5) has it, its Python stack, the collectives that it has recorded, and how
it ended if it is gone. The driver draws the conclusion (deploy/why).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from ...common.frames import Frame
from ..processes import SECONDS_PER_TICK
from . import stacks
from .ranks import Ranks
from .records import MOST_ENTRIES, read_ring, read_stack, read_trace

AT_ONCE = 8
MOST_OF_HOST = 12_000  # entries of all ranks: an answer has room for 8 MiB and half a million values
UNRECORDED = "the job was launched without --record"


def collect(tool: str, ranks: Ranks, folder: str, code: str, *, recorded: bool) -> Frame:
    """The evidence of each rank, by its number. `folder`: the agent's; `code`: where the user's files are."""
    programs = ranks.programs()
    before = {rank: (_cpu(pid), _faults(pid), time.monotonic()) for rank, (pid, _) in programs.items()}
    taken = stacks.take_stacks(tool, programs, code=code)
    known = sorted({*programs, *ranks.ends})
    most = max(8, min(MOST_ENTRIES, MOST_OF_HOST // max(1, len(known))))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        traces = {
            rank: pool.submit(read_trace, os.path.join(folder, f"torch-{rank}"), most) for rank in known
        }
        unread = [rank for rank in programs if "error" in taken[str(rank)]]  # as where py-spy is not there
        told = {
            rank: pool.submit(read_stack, os.path.join(folder, f"console-{rank}"), code) for rank in unread
        }
    taken.update({str(rank): {"frames": frames} for rank, of in told.items() if (frames := of.result())})
    evidence = {}
    for rank in known:
        record = {"missing": UNRECORDED}
        if recorded:
            record = read_ring(os.path.join(folder, f"ring-{rank}"), most)
        trace = traces[rank].result()
        found: Frame = {"now": time.time(), **record, "trace": trace}
        if rank in programs:
            found["process"] = _process(*programs[rank], before[rank])
            found.update(taken[str(rank)])
        elif end := ranks.ends.get(rank):
            found["end"] = {"code": end["code"], "out_of_memory": "out_of_memory" in end}
        evidence[str(rank)] = found
    return evidence


def _process(pid: int, state: str, before: tuple[float, int, float]) -> Frame:
    """A process now, with its use of the processor and the disk's pages since `before`."""
    cpu, faults, at = before
    seconds = max(time.monotonic() - at, 0.001)
    memory = _status(pid)
    return {
        "pid": pid,
        "state": state,
        "waits_in": _text(f"/proc/{pid}/wchan")[:64],
        "busy": max(0.0, (_cpu(pid) - cpu) / seconds),
        "faults": max(0.0, (_faults(pid) - faults) / seconds),
        "resident": memory.get("VmRSS", 0),
        "swapped": memory.get("VmSwap", 0),
        "threads": memory.get("Threads", 0) >> 10,
    }


def _fields(pid: int) -> list[str]:
    return _text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _cpu(pid: int) -> float:
    """Seconds of processor time of a process."""
    fields = _fields(pid)
    return sum(map(int, fields[11:13])) * SECONDS_PER_TICK if fields else 0.0


def _faults(pid: int) -> int:
    """Pages that a process had to wait for the disk for (majflt)."""
    fields = _fields(pid)
    return int(fields[9]) if fields else 0


def _status(pid: int) -> Mapping[str, int]:
    """The numbers of /proc/PID/status, those in kB as bytes."""
    numbers = {}
    for line in _text(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(":")
        if value.strip().split(" ")[0].isdecimal():
            numbers[name] = int(value.split()[0]) << 10
    return numbers


def _text(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return file.read(1 << 14)
    return ""
