"""Causes of slow ranks: other threads on their processors, a quota of their cgroup, a slow link.

Standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ....core.agent.cgroups import group_files
from ....core.agent.processes import peek
from ....core.wire.frames import Frame

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


# -- links --

LEAST_BYTES = 1 << 16
READINGS, PAUSE = 10, 0.01  # seconds between two readings
_ESTABLISHED, _LISTENS = "01", "0A"
_LOOPBACK = ("7F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
_MOST = 1 << 20  # bytes of a table


def unsent_share(root: str = "", uid: int | None = None) -> float:
    """The share of some readings in which a connection of this user had much to send that has not arrived."""
    owner = str(os.getuid() if uid is None else uid)
    waited = 0
    for reading in range(READINGS):
        if reading and not root:
            time.sleep(PAUSE)
        tables = [peek(f"{root}/proc/net/{name}", _MOST) for name in ("tcp", "tcp6")]
        waited += any(_waits(line.split(), owner) for table in tables for line in table.split("\n")[1:])
    return waited / READINGS


def _waits(fields: list[str], owner: str) -> bool:
    """Whether a line of /proc/net/tcp is a connection to another host with unsent data."""
    if len(fields) < 8 or fields[3] != _ESTABLISHED or fields[7] != owner:
        return False
    address = fields[2].partition(":")[0]
    local = address in _LOOPBACK if len(address) == 32 else address.endswith(_LOOPBACK[0])
    return not local and int(fields[4].partition(":")[0], 16) >= LEAST_BYTES


RESENT = 2
"""Data that was sent again so often, each time after a longer pause, without an answer, does not move."""
MOST_ADDRESSES = 8
_RESENDS = "01"


def connections(pid: int, root: str = "") -> tuple[list[str], list[str]]:
    """The addresses to which a process sends again and again by TCP without an answer; and its own addresses.

    Its own are those of this host, without ports, at which it has connections.
    """
    folder = f"{root}/proc/{pid}"
    sockets = _sockets(f"{folder}/fd")
    tables = [peek(f"{folder}/net/{name}", _MOST) for name in ("tcp", "tcp6")] if sockets else []
    lines = [line.split() for table in tables for line in table.split("\n")[1:]]
    mine = [fields for fields in lines if len(fields) > 9 and fields[9] in sockets]
    found = {_address(fields[2]) for fields in mine if _is_unanswered(fields)}
    own = {_address(fields[1]).rpartition(":")[0] for fields in mine if fields[3] != _LISTENS}
    return sorted(found)[:MOST_ADDRESSES], sorted(own)[:MOST_ADDRESSES]


def _sockets(folder: str) -> set[str]:
    """The inodes of the sockets among the open files of a process."""
    links = []
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                links.append(os.readlink(f"{folder}/{name}"))
    return {link[8:-1] for link in links if re.fullmatch(r"socket:\[\d+\]", link)}


def _is_unanswered(fields: list[str]) -> bool:
    """Whether a line of /proc/net/tcp is of a connection that gets no answer to what it sends."""
    return fields[5].startswith(_RESENDS) and int(fields[6], 16) >= RESENT


def _address(text: str) -> str:
    """`10.0.0.3:29500` for `0300000A:733C`: each word is in the order of this processor."""
    words, _, port = text.partition(":")
    packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    host = socket.inet_ntop(family, packed).removeprefix("::ffff:")
    return f"[{host}]:{int(port, 16)}" if ":" in host else f"{host}:{int(port, 16)}"
