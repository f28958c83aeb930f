"""The ranks of this host while they run: their processes, their activity, and the causes of their ends.

The counters of their memory group show whether the kernel has killed one for lack of memory.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
from collections.abc import Mapping

from ..wire.frames import Frame
from .cgroups import group_files
from .processes import ProcessStat, peek, process_table

# Linux writes "no limit" as the largest number of pages that it can count.
NO_LIMIT = 1 << 60
MOST_ANSWER, CONNECT_SECONDS = 1 << 18, 5.0  # bytes of the answer of a rank, and the time-out of a connection
UNKNOWN = -1  # in place of the rank of a process whose program has changed RANK


class Ranks:
    """Every rank of this host, by the process of its wrapper (`rank.py`)."""

    def __init__(self) -> None:
        self._wrappers: dict[int, int] = {}
        self._all_wrappers: dict[int, int] = {}
        self._stand_ins: set[int] = set()
        self.ends: dict[int, Frame] = {}
        """The ends of the ranks that have ended."""
        self._memory = OomKills()

    def started(self, rank: int, wrapper: int, stand_in: int = 0) -> None:
        """A wrapper has connected. `stand_in`: the process that the launcher has started for it."""
        self._wrappers[rank] = wrapper
        self._all_wrappers[wrapper] = rank
        self._stand_ins.add(stand_in)

    def ended(self, rank: int, end: Frame) -> Frame:
        self._wrappers.pop(rank, None)
        self.ends[rank] = explained = self.explained(end)
        self._memory.count()  # while the group of a container exists
        return explained

    def explained(self, end: Frame) -> Frame:
        """The end, with its cause if the kernel killed the rank for lack of memory."""
        if end["code"] != -signal.SIGKILL or not self._memory.explains_a_kill():
            return end
        return {**end, "out_of_memory": {"limit": self._memory.limit}}

    def other_kills(self) -> Frame:
        """The kills for lack of memory that explain the end of no rank: of the processes below ranks."""
        return {"kills": self._memory.unexplained(), "limit": self._memory.limit}

    def memory_of(self, pid: int) -> None:
        """Count in the memory group of another process, in which the ranks are."""
        self._memory = OomKills(str(pid))

    def wrappers(self) -> dict[int, int]:
        """The process of each rank's wrapper, as of now."""
        return dict(self._wrappers)

    def all_wrappers(self) -> dict[int, int]:
        """The rank of each wrapper so far: it may pass on output after its rank has ended."""
        return self._all_wrappers

    def of_process(self, pid: int, table: Mapping[int, ProcessStat]) -> int | None:
        """The rank that a process is of, also if it has left the rank; None for one of a launcher."""
        if pid in self._stand_ins:
            return None
        above = pid
        while above in table:
            if above in self._all_wrappers:
                return self._all_wrappers[above]
            above = table[above].parent
        ranks = re.findall(r"(?:^|\0)RANK=([^\0]*)", peek(f"/proc/{pid}/environ", 1 << 18))
        known = {str(rank): rank for rank in self._all_wrappers.values()}
        return known.get(ranks[0], UNKNOWN) if ranks else None

    def programs(self) -> dict[int, tuple[int, str]]:
        """The process of each rank's program and its state; none for a rank whose program does not run."""
        table = process_table()
        return {
            rank: (pid, table[pid].state)
            for rank, wrapper in list(self._wrappers.items())
            for pid in [pid for pid, stat in table.items() if stat.parent == wrapper][:1]
        }


# -- memory groups --


class OomKills:
    """Counts the OOM kills that have not explained the end of a process yet."""

    def __init__(self, group: str = "self") -> None:
        """`group`: the process whose memory group counts, as a name in /proc."""
        paths = (*group_files("memory", "memory.events", "memory.oom_control", group), "/proc/vmstat")
        self._path = next((path for path in paths if oom_kills(path) is not None), "")
        self._group = group
        self.limit: int | None = None
        """Bytes that the group may use, as last seen: it may change while the job runs."""
        self._counted = 0
        self._explained = self.count()

    def count(self) -> int:
        """All kills so far; of a group that is gone, those of the last look."""
        if (kills := oom_kills(self._path)) is not None:
            self._counted, self.limit = kills, memory_limit(self._group)
        return self._counted

    def explains_a_kill(self) -> bool:
        """Whether the kernel has killed another process here; each kill counts once."""
        if not self.unexplained():
            return False
        self._explained += 1
        return True

    def unexplained(self) -> int:
        """The kills that have not explained the end of a process."""
        return max(0, self.count() - self._explained)


def oom_kills(path: str) -> int | None:
    """The OOM kills of a cgroup, or of the whole host, by a file with their number; None without it."""
    with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None


def memory_limit(group: str = "self") -> int | None:
    """Bytes that a process's memory group may use, by its own limit and those above; None for no limit."""
    limits = []
    for path in group_files("memory", "memory.max", "memory.limit_in_bytes", group):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            limits.append(int(file.read()))  # ValueError for "max": no limit
    return min((limit for limit in limits if limit < NO_LIMIT), default=None)


def ask_rank(path: str, question: Frame, seconds: float) -> Frame:
    """The answer of a rank at one of its sockets; ValueError for a malformed one, OSError for a time-out."""
    with contextlib.closing(connect_to(path)) as connection, connection.makefile("rwb") as stream:
        connection.settimeout(seconds)
        stream.write(json.dumps(question).encode() + b"\n")
        stream.flush()
        answer: Frame = json.loads(stream.readline(MOST_ANSWER))
        return answer


def connect_to(path: str) -> socket.socket:
    """A connection to a Unix socket of a rank."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(CONNECT_SECONDS)
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection
