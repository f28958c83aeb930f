"""Measures this host: load, processors, memory, swap, network, disks, /dev/shm and temperature.

Each reading costs about half a millisecond of processor time: a few small files of /proc, without pathlib.
"""

from __future__ import annotations

import contextlib
import os

from ....core.agent.processes import peek
from ....core.wire.frames import Frame

SECTOR = 512  # bytes in /proc/diskstats, for every disk
# Interfaces that show the traffic of others again, and disks that lie on others.
VIRTUAL_NETS = ("lo", "docker", "br-", "virbr", "veth", "cni", "podman", "bond", "team", "tun", "tap")
VIRTUAL_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
SENSORS = 8  # the most that are read; some firmware takes milliseconds for each
SENSOR_SECONDS = 10.0


class Rates:
    """Turns counters, which only grow, into rates a second."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}

    def of(self, name: str, count: float, at: float) -> float | None:
        """The rate since the last call; None at the first call, and for a counter that began again."""
        earlier = self._last.get(name)
        self._last[name] = (count, at)
        if earlier is None or at <= earlier[1] or count < earlier[0]:
            return None
        return round((count - earlier[0]) / (at - earlier[1]), 4)


class HostMeter:
    """Reads this host again and again. `root`: a folder with the files of another machine, for tests."""

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._rates = Rates()
        self._sensors = self._find_sensors()
        self._temperature: tuple[float, float | None] = (-SENSOR_SECONDS, None)
        self._disks = self._names("/sys/block", VIRTUAL_DISKS)
        self._shm = f"{root}/dev/shm"  # noqa: S108  # only measured

    def read(self, at: float) -> Frame:
        """The fields of a sample that are about the host. `at`: seconds of any monotonic clock."""
        return {
            **self._processors(at),
            **self._memory(),
            **self._network(at),
            **self._disk(at),
            **self._shared_memory(),
            "temperature": self._hottest(at),
        }

    def _processors(self, at: float) -> Frame:
        """The busy share; waiting for a disk, and time that a hypervisor took, do not count as busy."""
        load = peek(f"{self._root}/proc/loadavg", 64).split()
        ticks = [int(field) for field in peek(f"{self._root}/proc/stat", 512).split("\n")[0].split()[1:9]]
        busy = self._rates.of("busy", sum(ticks) - sum(ticks[3:5]) - sum(ticks[7:8]), at)
        whole = self._rates.of("ticks", sum(ticks), at)
        return {
            "cpus": os.cpu_count(),
            "load": float(load[0]) if load else None,
            "cpu": min(1.0, round(busy / whole, 4)) if busy is not None and whole else None,
        }

    def _memory(self) -> Frame:
        sizes = {}
        for line in peek(f"{self._root}/proc/meminfo", 4096).split("\n"):
            name, _, rest = line.partition(":")
            if name in {"MemTotal", "MemAvailable", "SwapTotal", "SwapFree"}:
                sizes[name] = int(rest.split()[0]) << 10
        return {
            "memory": _without(sizes.get("MemTotal"), sizes.get("MemAvailable")),
            "memory_total": sizes.get("MemTotal"),
            "swap": _without(sizes.get("SwapTotal"), sizes.get("SwapFree")),
        }

    def _network(self, at: float) -> Frame:
        received = sent = 0
        for line in peek(f"{self._root}/proc/net/dev").split("\n")[2:]:
            name, _, rest = line.strip().partition(":")
            counts = rest.split()
            if len(counts) > 8 and not name.startswith(VIRTUAL_NETS) and "." not in name:  # eth0.7: a VLAN
                received, sent = received + int(counts[0]), sent + int(counts[8])
        return {
            "net_in": self._rates.of("net_in", received, at),
            "net_out": self._rates.of("net_out", sent, at),
        }

    def _disk(self, at: float) -> Frame:
        read = written = 0
        for line in peek(f"{self._root}/proc/diskstats").split("\n"):
            fields = line.split()
            if len(fields) > 9 and fields[2] in self._disks:
                read, written = read + int(fields[5]), written + int(fields[9])
        return {
            "disk_read": self._rates.of("disk_read", read * SECTOR, at),
            "disk_write": self._rates.of("disk_write", written * SECTOR, at),
        }

    def _shared_memory(self) -> Frame:
        try:
            room = os.statvfs(self._shm)
        except OSError:
            return {}
        return {
            "shm": (room.f_blocks - room.f_bfree) * room.f_frsize,
            "shm_total": room.f_blocks * room.f_frsize,
        }

    # -- temperature --

    def _find_sensors(self) -> list[str]:
        zones = [f"{zone}/temp" for zone in self._folders("/sys/class/thermal", "thermal_zone")]
        chips = [f"{chip}/temp1_input" for chip in self._folders("/sys/class/hwmon", "hwmon")]
        return [path for path in zones + chips if peek(path, 32).strip().lstrip("-").isdigit()][:SENSORS]

    def _hottest(self, at: float) -> float | None:
        """Degrees Celsius of the hottest sensor; it changes slowly, so it is not read each time."""
        when, degrees = self._temperature
        if self._sensors and at - when >= SENSOR_SECONDS:
            read = [peek(path, 32).strip() for path in self._sensors]
            degrees_read = [int(text) / 1000 for text in read if text.lstrip("-").isdigit()]
            self._temperature = (at, max(degrees_read, default=None))
            degrees = self._temperature[1]
        return degrees

    def _folders(self, path: str, start: str) -> list[str]:
        return [f"{self._root}{path}/{name}" for name in self._names(path, ()) if name.startswith(start)]

    def _names(self, path: str, without: tuple[str, ...]) -> list[str]:
        with contextlib.suppress(OSError):
            return sorted(name for name in os.listdir(self._root + path) if not name.startswith(without))
        return []


def _without(whole: int | None, rest: int | None) -> int | None:
    return max(0, whole - rest) if whole is not None and rest is not None else None
