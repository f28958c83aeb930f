"""The jobs of all users that run on this host, by the command lines of their ranks.

Every user can read those, as `ps` does, unless /proc is mounted with hidepid. They are texts of other users.
"""

from __future__ import annotations

import contextlib
import os
import re
import time

from ..wire.frames import Frame
from ..wire.users import name_of
from .gpus import Machine, pci_address, processes
from .processes import SECONDS_PER_TICK, peek, read_stat

# `python -IS HOME/.muster/jobs/JOB/bin/rank.py ...`: the wrapper of a rank.
_RANK = re.compile(r"/\.muster/jobs/([0-9]{8}-[0-9]{6}-[0-9a-f]{4})/bin/rank\.py\0")
GPUS = "/proc/driver/nvidia/gpus"
SMI_SECONDS = 2.0
MOST_JOBS, MOST_ANCESTORS = 64, 64


def running_jobs() -> list[Frame]:
    """Each job with its user, the seconds since its first rank started, and the numbers of its GPUs.

    It may never return: a read of a command line waits while another thread of that process, stuck in the
    kernel, holds its memory map.
    """
    ranks: dict[tuple[str, int], list[str]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if match := _RANK.search(peek(f"/proc/{pid}/cmdline", 4096)):
            with contextlib.suppress(OSError):  # it has ended
                job = match.group(1), os.stat(f"/proc/{pid}").st_uid
                ranks.setdefault(job, []).append(pid)
    users = gpu_users() if ranks else {}
    return [
        {
            "job": job,
            "user": name_of(user),
            "seconds": max(map(_age, pids)),
            "gpus": sorted(gpu for gpu, above in users.items() if above & {*pids}),
        }
        for (job, user), pids in sorted(ranks.items())[:MOST_JOBS]
    ]


def gpu_users() -> dict[int, set[str]]:
    """The processes that use each GPU, with all processes above them."""
    machine = Machine(seconds=SMI_SECONDS)
    addresses = [name.lower() for name in machine.names(GPUS)]  # in the order of nvidia-smi's numbers
    smi = machine.program("nvidia-smi") if addresses else None
    if smi is None:
        return {}
    found = {pci_address(gpu): pids for gpu, pids in processes(machine, smi, "gpu_bus_id").items()}
    return {
        number: set().union(*(_ancestry(str(pid)) for pid in found[address]))
        for number, address in enumerate(addresses)
        if address in found
    }


def _ancestry(pid: str) -> set[str]:
    """A process and those above it."""
    pids: set[str] = set()
    while pid.isdigit() and pid not in pids and len(pids) < MOST_ANCESTORS:
        pids.add(pid)
        pid = str(stat.parent) if (stat := read_stat(pid)) else ""
    return pids


def _age(pid: str) -> float:
    """The seconds since a process started; 0 if it has ended."""
    stat = read_stat(pid)
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - stat.start * SECONDS_PER_TICK) if stat else 0.0
