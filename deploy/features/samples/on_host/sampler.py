"""Sends the driver a sample of this host and its ranks every few seconds, while a job runs here.

It must never disturb the job: an error costs only the sample, and a host where sampling is expensive is
sampled less often.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....core.agent.processes import below, peek, process_table
from ....core.agent.running_jobs import gpu_users
from ....core.agent.supervisor import JobPart, JobSupervisor
from ....core.wire.clock import steady
from ....core.wire.frames import Frame
from ....core.wire.paths import JobPaths
from ....core.wire.users import name_of
from .gpu_meter import GpuMeter
from .meter import HostMeter
from .rank_meter import RankMeter

# Modules of the standard library that explain a stalled job. They are loaded while the ranks start:
# Python may be replaced while they run.
NEEDED_LATER = ("concurrent.futures.thread", "http.client", "mmap")
STEPS = "steps.jsonl"
FIGURES = ("loss", "step_seconds", "samples_per_second", "time")
MOST_TAIL = 1 << 13
MOST_BYTES = 1 << 19  # of a sample, which has about 150 for each rank
MOST_SHARE = 0.005  # of a core
GPU_USERS_SECONDS = 10.0  # between two looks at the processes on the GPUs; each starts nvidia-smi
GPU_USERS_SHARE = 0.05  # of the time, for these looks; nvidia-smi mostly waits for the driver
INITIAL = 0xEFFFFFFC
"""The inode of the host's own PID namespace (PROC_PID_INIT_INO in Linux's proc_ns.h)."""
MOST_USERS = 64
_USER = re.compile(r"Process (\d{1,7}) has [\d.]+ \w+ memory in use")
MOST_SECONDS = 8.0  # between two samples: a longer gap would look like a lost host


class Sampling(JobPart):
    """The samples of each attempt."""

    def __init__(self, job: JobSupervisor) -> None:
        super().__init__(job)
        self._sampler: Sampler | None = None

    def do_watch(self, request: Frame, payload: bytes) -> Frame:
        """Send a sample of this host and its ranks every so many seconds, until the job ends."""
        job = self.job
        self.ending()
        if job.job:
            out = JobPaths(job.job["folder"]).out
            self._sampler = Sampler(job.ranks.wrappers, out, request["every"], job.send, self._preloaded)
            job.shared["gpus"] = self._sampler.gpus
        return {}

    def _preloaded(self) -> Any:
        return self.job.shared.get("preloaded", lambda: None)()

    def rank_ended(self, end: Frame) -> Frame:
        """The other processes on the GPU of a rank that had no memory there."""
        if end["code"] and any("CUDA out of memory" in line for line in end["tail"]):
            return {"gpu_users": others_on_gpu(end["tail"], self.job.ranks.wrappers())}
        return {}

    def ending(self) -> None:
        """Send no more."""
        if self._sampler:
            self._sampler.close()


class Sampler:
    """Measures in a thread, until it is closed.

    `wrappers` returns the process of each rank's wrapper; `out` is the job's folder for outputs;
    `preloaded` returns the bytes that `--preload` takes, None without it.
    """

    def __init__(
        self,
        wrappers: Callable[[], Mapping[int, int]],
        out: str,
        every: float,
        send: Callable[[Frame], None],
        preloaded: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._wrappers, self._every, self._send, self._preloaded = wrappers, every, send, preloaded
        self._host, self._gpus, self._ranks = HostMeter(), GpuMeter(), RankMeter()
        self._training = TrainingMeter(out)
        self._gpu_users: Mapping[int, set[str]] = {}
        self._newest: Frame = {}
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        threading.Thread(target=self._find_gpu_users, daemon=True).start()

    def close(self) -> None:
        """Send no more."""
        self._ended.set()
        self._gpus.close()

    def sample(self) -> Frame:
        """A sample of the host and its ranks; rates from the second call on."""
        at, wrappers = steady(), self._wrappers()
        return {
            **self._host.read(at),
            **self._gpus.fields(),
            "preloaded": self._preloaded(),
            "ranks": [
                {**entry, "gpus": self._gpus_of(wrappers[entry["rank"]])}
                for entry in self._ranks.read(wrappers, at)
            ],
            "training": self._training.read(),
        }

    def gpus(self) -> Mapping[int, list[Frame]]:
        """The GPUs that each rank uses, as in the newest sample; a rank is missing if they are unknown."""
        gpus = {gpu["index"]: gpu for gpu in self._newest.get("gpus", ())}
        return {
            entry["rank"]: [gpus[number] for number in entry["gpus"] if number in gpus]
            for entry in self._newest.get("ranks", ())
            if entry["gpus"]
        }

    def _gpus_of(self, wrapper: int) -> list[int] | None:
        """The numbers of a rank's GPUs; None if nvidia-smi names no process, as in a container."""
        users = self._gpu_users
        return sorted(number for number, pids in users.items() if str(wrapper) in pids) if users else None

    def _find_gpu_users(self) -> None:
        """Look now and then which processes use which GPU."""
        pause = GPU_USERS_SECONDS
        while not self._ended.wait(pause):
            began = time.monotonic()
            with contextlib.suppress(OSError, ValueError):
                self._gpu_users = gpu_users()
            pause = max(GPU_USERS_SECONDS, (time.monotonic() - began) / GPU_USERS_SHARE)

    def _run(self) -> None:
        self._take()  # rates count from here
        for module in NEEDED_LATER:
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
        pause = self._every
        while not self._ended.wait(pause):
            began = time.thread_time()
            if sample := self._take():
                self._send({"event": "sample", "sample": sample})
            pause = max(self._every, min(MOST_SECONDS, (time.thread_time() - began) / MOST_SHARE))

    def _take(self) -> str:
        """A sample as JSON; empty for one that the driver would not take."""
        try:
            self._newest = self.sample()
            text = json.dumps(self._newest, allow_nan=False)
        except Exception:  # noqa: BLE001  # /proc may hold anything, and it is only a sample
            return ""
        return text if len(text) <= MOST_BYTES else ""


# -- the training --


class TrainingMeter:
    """The newest figures of a training on this host: the last line of `steps.jsonl` in the output folder.

    Reads the file again when it has grown. A program writes it: it may hold anything. What an earlier attempt
    wrote is no step of this one, also if a program that resumes cuts the file.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, STEPS)
        self._size = self._size_now()
        self._newest: Frame | None = None

    def read(self) -> Frame | None:
        """The step and its figures; None before the first step of this attempt."""
        before, self._size = self._size, self._size_now()
        if self._size > before:
            with contextlib.suppress(OSError):
                self._newest = last_step(_tail(self._path, self._size)) or self._newest
        return self._newest

    def _size_now(self) -> int:
        try:
            return os.stat(self._path).st_size
        except OSError:
            return -1


def last_step(tail: bytes) -> Frame | None:
    """The figures of the last whole line that has a step; numbers that JSON does not have are left out."""
    for line in reversed(tail.split(b"\n")[:-1]):
        with contextlib.suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and type(step := record.get("step")) is int and step >= 0:
                figures = {name: record[name] for name in FIGURES if _is_number(record.get(name))}
                return {"step": step, **figures}
    return None


def _is_number(value: Any) -> bool:
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    return numeric and math.isfinite(value) and abs(value) < 1e300


def _tail(path: str, size: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(0, size - MOST_TAIL))
        return file.read(MOST_TAIL)


# -- the other users of a GPU --


def others_on_gpu(tail: Sequence[str], wrappers: Mapping[int, int]) -> list[Frame]:
    """The fields of `GpuUser` (core/connect/reports.py) of the processes that these lines name.

    `wrappers`: the process of each rank's wrapper. The driver counts processes as the host does, so none is
    named in a container with numbers of its own.
    """
    full = [line for line in tail if "CUDA out of memory" in line]
    pids = [int(pid) for line in full[-1:] for pid in _USER.findall(line)][:MOST_USERS]
    if not pids or os.stat("/proc/self/ns/pid").st_ino != INITIAL:
        return []
    table = process_table()
    ranks = {pid: rank for rank, wrapper in wrappers.items() for pid in below(wrapper, table)}
    return [_described(pid, ranks) for pid in dict.fromkeys(pids) if pid in table]


def _described(pid: int, ranks: Mapping[int, int]) -> Frame:
    try:
        user = name_of(os.stat(f"/proc/{pid}").st_uid)
    except OSError:  # it has ended
        user = ""
    rank = {"rank": ranks[pid]} if pid in ranks else {}
    return {"pid": pid, "user": user, "program": peek(f"/proc/{pid}/comm", 64).strip(), **rank}
