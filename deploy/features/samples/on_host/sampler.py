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
from typing import Any, NamedTuple

from ....core.agent.processes import SECONDS_PER_TICK, ProcessStat, below, peek, process_table, read_stat
from ....core.agent.running_jobs import gpu_users
from ....core.agent.supervisor import JobHandler, JobSupervisor
from ....core.wire.clock import steady
from ....core.wire.frames import Frame
from ....core.wire.paths import JobPaths
from ....core.wire.users import name_of
from .gpu_meter import GpuMeter
from .meter import HostMeter

LOOKS = 3
"""How often the command line of a process is read: a shell replaces itself by the program that it starts."""
MOST_COMMAND, MOST_TEXT = 4096, 120
LAUNCHERS = {
    "torchrun",
    "mpirun",
    "mpiexec",
    "orterun",
    "prterun",
    "deepspeed",
    "horovodrun",
    "accelerate launch",
}
_INTERPRETER = re.compile(r"python[\d.]*|(?:ba|da)?sh")
_MODULES = {
    **dict.fromkeys(("torch.distributed.run", "torch.distributed.launch"), "torchrun"),
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
_OF_HOSTS = {
    "nnodes",
    "rdzv-endpoint",
    "node-rank",
    "num-machines",
    "machine-rank",
    "host",
    "hostfile",
    "machinefile",
}
"""Options of a launcher that starts ranks of one job on several hosts."""


class ProcessUse(NamedTuple):
    """A process, and the bytes that it has read and written."""

    stat: ProcessStat
    read: int
    written: int


class RankMeter:
    """Reads the ranks of this host again and again."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, dict[int, ProcessUse]]] = {}
        """The time of the last reading of each rank, and its processes then."""
        self._launchers: dict[int, str] = {}
        self._looks: dict[tuple[int, int], int] = {}
        """How often each process was looked at, by its number and start."""

    def read(self, wrappers: Mapping[int, int], at: float) -> list[Frame]:
        """The fields of a sample for each rank that runs. `wrappers`: the process of each rank's wrapper.

        `at`: seconds since boot (core/wire/clock.py).
        """
        ranks = []
        for rank, wrapper in sorted(wrappers.items()):
            processes = {pid: use for pid in children_of(wrapper) if (use := read_use(pid))}
            if processes:
                launcher = self._launcher(rank, processes)
                started = {"launcher": launcher} if launcher else {}
                rates, sums = self._rates(rank, processes, at), _sums(wrapper, processes)
                ranks.append({"rank": rank, **rates, **sums, **started})
        self._seen = {rank: seen for rank, seen in self._seen.items() if rank in wrappers}
        living = {(pid, use.stat.start) for _, uses in self._seen.values() for pid, use in uses.items()}
        self._looks = {process: looks for process, looks in self._looks.items() if process in living}
        return ranks

    def _launcher(self, rank: int, processes: Mapping[int, ProcessUse]) -> str | None:
        """The launcher of ranks that this rank has started, with its program; None without one."""
        for pid, process in processes.items():
            key = (pid, process.stat.start)
            self._looks[key] = looks = self._looks.get(key, 0) + 1
            if rank in self._launchers or looks > LOOKS:
                continue
            if launcher := launcher_of(peek(f"/proc/{pid}/cmdline", MOST_COMMAND).split("\0")):
                self._launchers[rank] = launcher
        return self._launchers.get(rank)

    def _rates(self, rank: int, processes: dict[int, ProcessUse], at: float) -> Frame:
        """The rates of all processes together since the last reading; none at the first reading."""
        before, old = self._seen.get(rank, (at, {}))
        self._seen[rank] = (at, processes)
        if at <= before:
            return {}
        cpu = read = written = 0.0
        for pid, process in processes.items():
            last = old.get(pid)
            if last is None or last.stat.start != process.stat.start:
                if process.stat.start * SECONDS_PER_TICK < before:  # it is not new
                    continue
                last = None
            cpu += (process.stat.ticks - (last.stat.ticks if last else 0)) * SECONDS_PER_TICK
            read += process.read - (last.read if last else 0)
            written += process.written - (last.written if last else 0)
        seconds = at - before
        rates = {"cpu": cpu / seconds, "read": read / seconds, "written": written / seconds}
        return {name: max(0.0, round(rate, 3)) for name, rate in rates.items()}


def launcher_of(argv: Sequence[str]) -> str:
    """`torchrun train.py` for a process that starts ranks on this host alone; else empty."""
    words = [*argv]
    if _INTERPRETER.fullmatch(os.path.basename(words[0])):
        del words[0]
        while words and words[0].startswith("-") and words[0] != "-m":
            del words[0]
    name = os.path.basename(words[0]) if words else ""
    if name == "-m" and len(words) > 1:
        name = _MODULES.get(words[1], "")
    elif name == "accelerate":
        name = " ".join((name, *words[1:2]))
    options = {word.partition("=")[0].lstrip("-").replace("_", "-") for word in words if word.startswith("-")}
    alone = {"--nnodes=1"} & {*words} or "--nnodes 1" in " ".join(words)
    if name not in LAUNCHERS or (not alone and _OF_HOSTS & options):
        return ""
    program = next((word for word in words[1:] if word.endswith(".py")), "")
    return f"{name} {program}".strip()[:MOST_TEXT]


def _sums(wrapper: int, processes: Mapping[int, ProcessUse]) -> Frame:
    program = next(iter(processes.values()))  # the wrapper's first child
    around = read_stat(wrapper)
    return {
        "memory": sum(process.stat.memory for process in processes.values()),
        "threads": sum(process.stat.threads for process in processes.values()),
        "state": "T" if around and around.state == "T" else program.stat.state,
    }


def read_use(pid: int) -> ProcessUse | None:
    """A process; None for one that has ended."""
    stat = read_stat(pid)
    if stat is None:
        return None
    lines = peek(f"/proc/{pid}/io", 256).splitlines()
    counts = dict(line.partition(": ")[::2] for line in lines)
    return ProcessUse(stat, int(counts.get("rchar", 0)), int(counts.get("wchar", 0)))


def children_of(wrapper: int) -> list[int]:
    """Everything below a process, parents first. Any thread may have started a child.

    The kernel needs CONFIG_PROC_CHILDREN, which distributions set.
    """
    pids: list[int] = []
    level = [wrapper]
    while level:
        level = [int(child) for pid in level for task in _tasks(pid) for child in peek(task).split()]
        pids += level
    return pids


def _tasks(pid: int) -> list[str]:
    """The list of children of each thread of a process; none if it has ended."""
    try:
        return [f"/proc/{pid}/task/{thread}/children" for thread in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


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


class Sampling(JobHandler):
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
            self._sampler = Sampler(job.ranks.wrappers, out, request["every"], job.send)
            job.shared["gpus"] = self._sampler.gpus
        return {}

    def rank_ended(self, end: Frame) -> dict[str, str]:
        """The other processes on the GPU of a rank that had no memory there."""
        if end["code"] and any("CUDA out of memory" in line for line in end["tail"]):
            return {"gpu_users": json.dumps(others_on_gpu(end["tail"], self.job.ranks.wrappers()))}
        return {}

    def ending(self) -> None:
        """Send no more."""
        if self._sampler:
            self._sampler.close()


class Sampler:
    """Measures in a thread, until it is closed.

    `wrappers` returns the process of each rank's wrapper; `out` is the job's folder for outputs.
    """

    def __init__(
        self,
        wrappers: Callable[[], Mapping[int, int]],
        out: str,
        every: float,
        send: Callable[[Frame], None],
    ) -> None:
        self._wrappers, self._every, self._send = wrappers, every, send
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
            "gpus": self._gpus.read(),
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
    """The fields of `GpuUser` (features/hints/driver.py) of the processes that these lines name.

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
