"""The state of this host for `muster check`: space, limits, GPUs, processes of older jobs."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import resource
import socket
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...core.agent.facts import distribution_version, glibc_version
from ...core.agent.gpus import survey
from ...core.agent.processes import peek, read_stat
from ...core.wire.frames import Frame
from ...core.wire.limits import is_noexec, open_files
from ...core.wire.paths import MusterPaths
from ...core.wire.users import own_name

_AGENT = '\0"muster agent"; import sys'
"""How the program of an agent begins among the arguments of its process (core/connect/bootstrap.py)."""
_LOCK = re.compile(r"/\.muster/jobs/([0-9]{8}-[0-9]{6}-[0-9a-f]{4})/lock\.")


class HealthHandler:
    """Answers the request for the state of this host."""

    def do_health(self, request: Frame, payload: bytes) -> Frame:
        """The state of this host."""
        return health()


def health() -> Frame:
    """Everything that may make a job fail on this host, without importing torch or touching a GPU."""
    gpu_survey = survey()
    muster = MusterPaths.of_home(str(Path.home())).root
    return {
        "user": own_name(),
        "folders": [examine_folder(Path(folder)) for folder in (muster, tempfile.gettempdir())],
        "shm_free": free_bytes("/dev/shm"),  # noqa: S108  # only measured
        "nofile": open_files(),
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "rdma": has_rdma(),
        **gpu_survey,
        "driver": next((gpu["driver"] for gpu in gpu_survey["gpus"]), gpu_survey["gpu_host"]["module"]),
        "driver_cuda": driver_cuda(),
        "torch_cuda": torch_cuda(),
        "nccl": nccl_version(),
        "jobs": job_processes(),
        "kernel": os.uname().release,
        "glibc": glibc_version() or None,
        "numpy": distribution_version("numpy"),
        "mtu": mtu(),
        "variables": variables(),
        "machine": machine(),
    }


# -- room --


def examine_folder(path: Path) -> Frame:
    """The free space where a folder is or would be, and the error of a test write, which shows a quota."""
    frame: Frame = {"path": str(path), "free": None, "inodes": None, "noexec": False, "error": None}
    try:
        existing = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
        frame["free"] = free_bytes(str(existing))
        status = os.statvfs(existing)
        frame["inodes"] = status.f_favail if status.f_files else None  # btrfs counts none
        frame["noexec"] = is_noexec(str(existing))
        with tempfile.NamedTemporaryFile(dir=str(existing), prefix=".muster-check-") as file:
            file.write(b"\0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        frame["error"] = f"{error.strerror or error}"
    return frame


def free_bytes(path: str) -> int | None:
    """The bytes that this user may still write to a file system; None if it does not exist."""
    with contextlib.suppress(OSError):
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize
    return None


def has_rdma() -> bool:
    """Whether there is an InfiniBand or RoCE device: its drivers lock memory."""
    with contextlib.suppress(OSError):
        return bool(os.listdir("/sys/class/infiniband"))
    return False


# -- the network and its variables --


def mtu() -> int | None:
    """The MTU of the interface with the default route; None without one."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/net/route").read_text().splitlines():
            interface, target, *_, mask, _, _, _ = line.split()
            if target == mask == "00000000":
                return int(Path(f"/sys/class/net/{interface}/mtu").read_text())
    return None


def machine() -> str:
    """The same text in all logins of one machine, or of one container with a network of its own."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    return ""


def variables() -> str:
    """The variables of NCCL that jobs inherit from the login, as `NAME=value` in order of the names."""
    pairs = sorted(pair for pair in os.environ.items() if pair[0].startswith("NCCL_"))
    return " ".join(map("=".join, pairs))[:4096]


# -- the stack --


def driver_cuda() -> str | None:
    """The newest CUDA that the driver can run: `12.4`."""
    with contextlib.suppress(OSError, AttributeError):
        number = ctypes.c_int()
        # Needs no cuInit, so no GPU is woken.
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) == 0 and number.value:
            return f"{number.value // 1000}.{number.value % 1000 // 10}"
    return None


def torch_cuda() -> str | None:
    """The CUDA that torch was built with, read from its `version.py`: importing torch takes seconds."""
    with contextlib.suppress(OSError, ValueError):
        spec = importlib.util.find_spec("torch")
        if spec and spec.origin:
            text = (Path(spec.origin).parent / "version.py").read_text()
            match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
            return match.group(1) if match else None
    return None


def nccl_version() -> str | None:
    """The version of NCCL in torch's wheel; None for a build that links the system's NCCL."""
    names = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
    return next((version for name in names if (version := distribution_version(name))), None)


# -- other jobs --


def job_processes() -> list[Frame]:
    """Processes of this user that a job started here, by job; none where only a stopped agent is left.

    `kept`: whether their agent still lives; `stopped`: its number if it is stopped (SIGSTOP), else None.
    """
    jobs: dict[tuple[str, str], list[int]] = {}
    for pid, environment in _own_environments():
        agent = environment.get(b"MUSTER_AGENT")
        if agent:
            job = environment.get(b"MUSTER_JOB", b"unknown")
            jobs.setdefault((os.fsdecode(job), os.fsdecode(agent)), []).append(pid)
    described: list[Frame] = []
    for (name, folder), pids in jobs.items():
        keeper = living_agent(folder)
        stopped = keeper if keeper and _is_stopped(keeper) else None
        described.append({"job": name, "kept": keeper is not None, "stopped": stopped, "pids": sorted(pids)})
    known = {entry["stopped"] for entry in described}
    for pid in _stopped_agents():
        if pid not in known:
            described.append({"job": _job_of_agent(pid), "kept": True, "stopped": pid, "pids": []})
    return described


def _stopped_agents() -> Iterator[int]:
    """The agents of this user that are stopped: they end nothing, and their ranks may be gone."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            is_own = os.stat(f"/proc/{entry}").st_uid == os.getuid()
            if is_own and _is_stopped(int(entry)) and _AGENT in peek(f"/proc/{entry}/cmdline", 4096):
                yield int(entry)


def _job_of_agent(pid: int) -> str:
    """The job whose lock an agent has open."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if match := _LOCK.search(os.readlink(f"/proc/{pid}/fd/{number}")):
                return match.group(1)
    return "unknown"


def _own_environments() -> Iterator[tuple[int, dict[bytes, bytes]]]:
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdigit() and os.stat(f"/proc/{entry}").st_uid == os.getuid():
                with open(f"/proc/{entry}/environ", "rb") as file:
                    pairs = (entry.partition(b"=") for entry in file.read().split(b"\0"))
                    yield int(entry), {name: value for name, _, value in pairs}


def living_agent(folder: str) -> int | None:
    """The process that listens in an agent's private folder, also if it is stopped; None without one."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        probe.connect(os.path.join(folder, "agent"))
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[0])
    return None


def _is_stopped(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.state == "T"
