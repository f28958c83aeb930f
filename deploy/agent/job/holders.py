"""Who holds up a rank: the process that has the lock of a file, and the processes below it that have ended.

Standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from ...common.frames import Frame
from ..processes import peek

MOST_LOCKS = 1 << 20  # bytes of /proc/locks
MOST_NAME = 100  # characters of a command
MOST_CHILDREN = 4
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.semaphore_tracker")


def file_lock(pid: int, ranks: Mapping[int, int], root: str = "") -> Frame | None:
    """The file for whose lock a process waits, and who has it; None if it waits for none.

    `ranks`: the rank of each process that is one. `root`: a folder with the files of another machine.
    """
    lines = [line.split() for line in peek(f"{root}/proc/locks", MOST_LOCKS).split("\n")]
    waits = next((line for line in lines if line[1:2] == ["->"] and line[5:6] == [str(pid)]), None)
    if waits is None or len(waits) < 7:
        return None
    number, file = waits[0], waits[6]
    held = next(
        (line for line in lines if line[:1] == [number] and line[1:2] != ["->"] and len(line) > 4), []
    )
    holder = int(held[4]) if held and held[4].isdigit() else 0  # 0 or -1: of another container or host
    return {
        "path": _path_of(pid, int(file.rpartition(":")[2]), root),
        "pid": holder,
        "program": _command(holder, root) if holder else "",
        "rank": ranks.get(holder),
    }


def _path_of(pid: int, inode: int, root: str) -> str:
    """The name of a file that a process has open."""
    folder = f"{root}/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:  # it has ended, or is another user's
        return ""
    for name in names:
        with contextlib.suppress(OSError):  # a file that it has just closed
            if os.stat(f"{folder}/{name}").st_ino == inode:
                return os.readlink(f"{folder}/{name}")[-400:]
    return ""


def children(pids: Mapping[int, int], root: str = "") -> dict[int, list[Frame]]:
    """The processes below each rank: their commands, and the ends of those that it has not waited for yet.

    `pids`: the process of each rank.
    """
    ranks = {pid: rank for rank, pid in pids.items()}
    found: dict[int, list[Frame]] = {}
    for pid, parent, code in _processes(root):
        rank = ranks.get(parent)
        command = _command(pid, root) if rank is not None else ""
        if rank is not None and not any(helper in command for helper in _HELPERS):
            found.setdefault(rank, []).append({"pid": pid, "program": command, "code": code})
    ended_first = {
        rank: sorted(each, key=lambda child: child["code"] is None) for rank, each in found.items()
    }
    return {rank: each[:MOST_CHILDREN] for rank, each in ended_first.items()}


def _processes(root: str) -> Iterator[tuple[int, int, int | None]]:
    """The number of each process, of its parent, and its exit code if it has ended."""
    for name in filter(str.isdigit, os.listdir(f"{root}/proc")):
        fields = peek(f"{root}/proc/{name}/stat", 1024).rpartition(")")[2].split()
        if len(fields) > 1:
            yield int(name), int(fields[1]), _code(fields) if fields[0] == "Z" else None


def _code(fields: list[str]) -> int:
    """The exit code in proc(5): negative for a signal."""
    status = int(fields[49]) if len(fields) > 49 else 0
    return -(status & 0x7F) or status >> 8


def _command(pid: int, root: str) -> str:
    """The words of a command; of a process that has ended, its name."""
    words = peek(f"{root}/proc/{pid}/cmdline", 1024).rstrip("\0").replace("\0", " ")
    return (words or peek(f"{root}/proc/{pid}/comm", 64).strip())[:MOST_NAME]
