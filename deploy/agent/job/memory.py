"""Whether the kernel has killed a process for lack of memory: the counters of this process's memory group."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

# Linux writes "no limit" as the largest number of pages that it can count.
NO_LIMIT = 1 << 60
V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"


class OutOfMemory:
    """Counts the OOM kills that have not explained the end of a process yet."""

    def __init__(self, group: str = "self") -> None:
        self.group = group
        """The process whose memory group counts, as a name in /proc."""
        self._explained = oom_kills(group)

    def explains_a_kill(self) -> bool:
        """Whether the kernel has killed another process here; each kill counts once."""
        if oom_kills(self.group) <= self._explained:
            return False
        self._explained += 1
        return True


def oom_kills(group: str = "self") -> int:
    """OOM kills in a process's cgroup; outside of every cgroup, on the whole host."""
    for path in (*group_files("memory.events", "memory.oom_control", group), "/proc/vmstat"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0


def memory_limit(group: str = "self") -> int | None:
    """Bytes that a process's memory group may use; None for no limit."""
    for path in group_files("memory.max", "memory.limit_in_bytes", group):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            limit = int(file.read())  # ValueError for "max": no limit
            return limit if limit < NO_LIMIT else None
    return None


def group_files(name_v2: str, name_v1: str, group: str = "self") -> Iterator[str]:
    """Where a file of a process's memory group may be; a container sees its group at the mount's root."""
    with contextlib.suppress(OSError), open(f"/proc/{group}/cgroup", encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers == "":
                yield from (os.path.join(V2 + path, name_v2), os.path.join(V2, name_v2))
            elif "memory" in controllers.split(","):
                yield from (os.path.join(V1 + path, name_v1), os.path.join(V1, name_v1))
