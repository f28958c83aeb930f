"""The jobs of all users that run on this host, by the command lines of their ranks.

Every user can read those, as `ps` does, unless /proc is mounted with hidepid. They are texts of other users.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import subprocess
import time

from ...common.frames import Frame

# `python -IS HOME/.muster/jobs/JOB/bin/rank.py ...`: the wrapper of a rank.
_RANK = re.compile(rb"/\.muster/jobs/([0-9]{8}-[0-9]{6}-[0-9a-f]{4})/bin/rank\.py\0")
GPUS = "/proc/driver/nvidia/gpus"
SMI = ("nvidia-smi", "--query-compute-apps=gpu_bus_id,pid", "--format=csv,noheader")
SMI_SECONDS = 2.0
MOST_JOBS, MOST_ANCESTORS = 64, 64


def running_jobs() -> list[Frame]:
    """Each job with its user, the seconds since its first rank started, and the numbers of its GPUs."""
    ranks: dict[tuple[str, int], list[str]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if match := _RANK.search(_read(f"/proc/{pid}/cmdline")):
            with contextlib.suppress(OSError):
                job = match.group(1).decode(), os.stat(f"/proc/{pid}").st_uid
                ranks.setdefault(job, []).append(pid)
    users = gpu_users() if ranks else {}
    return [
        {
            "job": job,
            "user": _name(user),
            "seconds": max((_age(pid) for pid in pids), default=0.0),
            "gpus": sorted(gpu for gpu, above in users.items() if above & {*pids}),
        }
        for (job, user), pids in sorted(ranks.items())[:MOST_JOBS]
    ]


def gpu_users() -> dict[int, set[str]]:
    """The processes that use each GPU, with all processes above them."""
    try:
        addresses = sorted(os.listdir(GPUS))  # in the order of nvidia-smi's numbers
        done = subprocess.run(
            SMI, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=SMI_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    users: dict[int, set[str]] = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        address, _, pid = line.partition(",")
        numbers = [n for n, known in enumerate(addresses) if address.strip().lower().endswith(known.lower())]
        if numbers:
            users.setdefault(numbers[0], set()).update(_ancestry(pid.strip()))
    return users


def _ancestry(pid: str) -> set[str]:
    found: set[str] = set()
    while pid.isdigit() and pid not in found and len(found) < MOST_ANCESTORS:
        found.add(pid)
        pid = (_stat(pid) or ["", ""])[1]
    return found


def _age(pid: str) -> float:
    fields = _stat(pid)
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK") if len(fields) > 19 else float("inf")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def _stat(pid: str) -> list[str]:
    """The fields of proc(5) after the name, from the state on; none for a process that is gone."""
    return _read(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")[2].split()


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
