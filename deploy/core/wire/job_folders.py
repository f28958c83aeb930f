"""Reads jobs from their folders: their list, their files, their results; and stops a job.

A run's folder is `runs/JOB` on the machine of its driver, and `~/.muster/jobs/JOB/run` on the job's head:

    job.json         the record of the job and its driver
    lock.driver      held by that driver as long as it lives (flock(2)); absent if the driver is elsewhere
    logs/order       the log and the bytes of each write, so that all logs can be read in the order of writing
    result.json      the result, written last; verdict.txt is the same for people
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from .durable import write_atomically
from .files import open_regular
from .frames import MOST_VALUES, Frame, read_frame, values_in, write_frame
from .paths import JobPaths
from .private_folders import make_private
from .rank_logs import RankLog
from .users import name_of

LAST_BYTES = 4096
MOST_BYTES = 1 << 24  # of a file that are read at once: a host may have made it


class RunOutput:
    """Reads the logs of a run in the order in which they were written."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self.at = 0
        """The bytes of `logs/order` that were read."""
        self._read: dict[str, int] = {}

    def skip(self, end: int = 1 << 62) -> None:
        """Pass over the present output, at most to this position of `logs/order`."""
        for size, name in self._next(1 << 62, end):
            self._read[name] = self._read.get(name, 0) + size

    def take(self, rank: int | None = None, most: int = 1 << 18) -> tuple[list[tuple[str, str]], bool]:
        """The next texts, about `most` bytes of them, and whether there is more."""
        texts: list[tuple[str, str]] = []
        taken = 0
        for size, name in self._next(most):
            start = self._read.get(name, 0)
            self._read[name] = start + size
            taken += size
            if rank is None or ((log := RankLog.of_name(name)) and log.rank == rank):
                with open_regular(self._logs / name) as file:
                    file.seek(start)
                    text = file.read(max(0, min(size, MOST_BYTES)))
                    texts.append((name, text.decode(errors="surrogateescape")))
        return texts, taken > 0

    def _next(self, most: int, end: int = 1 << 62) -> Iterator[tuple[int, str]]:
        """Entries of `logs/order`, until they cover `most` bytes; the last line may be half written."""
        with contextlib.suppress(FileNotFoundError), open_regular(self._logs / "order") as file:
            file.seek(self.at)
            while most > 0 and self.at < end and (line := file.readline(LAST_BYTES)).endswith(b"\n"):
                self.at += len(line)
                size, _, name = line.decode().rstrip("\n").partition(" ")
                most -= int(size)
                yield int(size), os.path.basename(name)


RESERVES = ("reserve", "reserve.2")
"""Files that reserve disk space and inodes during a run (core/job/run_folder.py)."""
# The fields of job.json and result.json that must exist.
RECORD: dict[str, Any] = {
    **dict.fromkeys(("job", "launcher", "driver_folder"), str),
    **{
        "hosts": list,
        "ranks": int,
        "attempt": int,
        "detached": bool,
        "started": (int, float),
        "driver": dict,
    },
}
DRIVER: dict[str, Any] = {"host": str, "boot": str, "pid": int}
RESULT: dict[str, Any] = {"exit_status": int, "ended": (int, float)}
STOPS = frozenset({"interrupted", "stopped"})
"""Kinds of the first failure of a job that a user ended: by a signal or `muster stop`, or by a scheduler."""
HOSTS_RECORD = "hosts.json"
"""The file in the folder of a run that says how this machine reaches the hosts (cli/hosts_record.py)."""
FILES_FOLDER = "files"
"""The folder in that of a run for the files of `muster get JOB`."""
_JOB_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}")
ANSWER_SECONDS = 5.0


class JobFolders:
    """The jobs below one folder. `inside`: the path of the run in a job's folder."""

    def __init__(self, root: Path, inside: str = "run") -> None:
        self.root, self.inside = root, inside
        self._outputs: dict[str, RunOutput] = {}

    def run(self, job: str) -> Path:
        return self.root / job / self.inside

    def do_jobs(self, request: Frame, payload: bytes) -> Frame:
        """The description of every job here, or only of the job that the request names."""
        names = [request["job"]] if request.get("job") else filter(is_job_id, _folders(self.root))
        return {"jobs": [described for name in names if (described := self._describe(name))]}

    def _describe(self, name: str) -> Frame:
        """The description of a job; {} for a malformed folder, which must not hide other jobs.

        {} also for the record of another job, about which nothing here may say anything. A folder that was
        renamed to no job's id is found by its path alone.
        """
        try:
            described = describe(self.run(name))
        except (OSError, LookupError, TypeError, ValueError, AttributeError, OverflowError):
            return {}
        return {} if is_job_id(name) and described.get("job") != name else described

    def do_output(self, request: Frame, payload: bytes) -> Frame:
        """The next output of ranks, `[[log, text], ...]`; empty if there is no more so far.

        `skip`: pass over the present output. `rank`: leave out the other ranks. `start`: the position (`at`)
        at which an earlier agent stopped.
        """
        job = request["job"]
        if job not in self._outputs:
            self._outputs[job] = RunOutput(self.run(job) / "logs")
            self._outputs[job].skip(request.get("start", 0))
        output = self._outputs[job]
        if request.get("skip"):
            output.skip()
        printed, more = output.take(request.get("rank"))
        return {"output": printed, "more": more, "at": output.at}

    def do_record(self, request: Frame, payload: bytes) -> Frame:
        """Write a file of a run whose driver is on another machine."""
        make_private(self.root.parent, self.root, self.root / request["job"], self.run(request["job"]))
        write_atomically(self.run(request["job"]) / request["name"], request["text"].encode(), 0o600)
        return {}

    def do_end_driver(self, request: Frame, payload: bytes) -> Frame:
        """Ask the driver of a job to stop the job; answers whether the driver was reached."""
        run, by, grace = self.run(request["job"]), request["by"], request.get("grace")
        if not _is_record(record := _load(run / "job.json")):
            return {"told": False}
        again = (run / "stop.json").exists()
        reached = end_driver(run, record["driver"], by, grace, force=request.get("force", False))
        return {"told": reached or stop_by_agent(run.parent, record["hosts"], by, grace), "again": again}

    def do_files(self, request: Frame, payload: bytes) -> Frame:
        run = self.run(request["job"])
        hidden = {"lock.driver", *RESERVES}
        paths = [path for path in sorted(run.rglob("*")) if path.is_file() and path.name not in hidden]
        return {"files": [[str(path.relative_to(run)), path.stat().st_size] for path in paths]}

    def do_read(self, request: Frame, payload: bytes) -> Frame:
        with open(self.run(request["job"]) / request["name"], "rb") as file:
            file.seek(request["start"])
            return {"payload": file.read(request["most"])}


def end_state(exit_status: int, kind: str | None) -> Literal["done", "failed", "stopped"]:
    """The state of a job with this result. `kind`: of its first failure, None without one."""
    if not exit_status:
        return "done"
    return "stopped" if kind in STOPS else "failed"


def describe(run: Path) -> Frame:
    """The description of a run: running, done, stopped, failed, or lost with its driver; {} for no run."""
    record = _load(run / "job.json")
    if not _is_record(record):  # no run, or a run of another version of this program
        return {}
    alive = is_held(run)  # checked first: a driver writes its result before it ends
    result = _load(run / "result.json")
    result = result if _has(result, RESULT) else {}
    if result.get("attempt", 0) != record.get("attempt", 0):
        result = {}  # of an earlier attempt
    waits = str(record.pop("waiting", "")) if not result else ""
    recorded = record.pop("recorded", {})
    unfinished = "waiting" if waits else "running"
    failure = result.get("first_failure") or {}
    ended = end_state(result["exit_status"], str(failure.get("kind"))) if result else ""
    state = ended or (unfinished if alive else "lost")
    why = waits if state == "waiting" else _why_lost(run, record) if state == "lost" else _why_failed(failure)
    user = record.get("user") or name_of((run / "job.json").stat().st_uid)
    return {
        **record,
        "user": str(user)[:LAST_BYTES],
        "arrived": _arrived(run, record),
        "state": state,
        "folder": str(run.resolve()),
        "ended": result.get("ended"),
        "exit_status": result.get("exit_status"),
        "why": why[:LAST_BYTES],
        "cause": "; ".join(map(str, result.get("causes", ())))[:LAST_BYTES],
        "last_line": _last_line(run),
        "saving": recorded.pop("saving", ()) if state == "running" else (),
        "recorded": recorded if state == "running" else {},
    }


def _arrived(run: Path, record: dict[str, Any]) -> float:
    """When a job began, but no later than this machine made its files: the clock of its driver may be ahead.

    Where that clock is this machine's, and was set back since, the start of the driver's process counts; 0 if
    it is from before a restart of this machine.
    """
    files = [run / "job.json", *run.glob("lock.driver"), *run.parent.glob("lock.*")]
    first = float(min(record["started"], *(path.stat().st_mtime for path in files)))
    if first <= time.time():
        return first
    driver = record["driver"]
    if driver["boot"] == _boot() and isinstance(driver.get("start"), int):
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.time() - max(0.0, now - int(driver["start"]) / os.sysconf("SC_CLK_TCK"))
    return 0.0


def _is_record(record: dict[str, Any]) -> bool:
    return (
        _has(record, RECORD)
        and _has(record["driver"], DRIVER)
        and all(isinstance(host, str) for host in record["hosts"])
        and 0 <= record["started"] < 1e12
        and is_job_id(record["job"])
    )


def is_job_id(name: str) -> bool:
    """Whether a name has the form of a job's id."""
    return _JOB_ID.fullmatch(name) is not None


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run: its job.json is a record of this user, or it is named like a job.

    Then it has any job.json, or the files of `muster get JOB`.
    """
    path = folder / "job.json"
    with contextlib.suppress(OSError):  # of another user
        if is_job_id(folder.resolve().name):
            return os.path.isfile(path) or os.path.isdir(folder / FILES_FOLDER)
        return os.path.isfile(path) and path.stat().st_uid == os.geteuid() and _is_record(_load(path))
    return False


def is_held(run: Path) -> bool:
    """Whether the run's driver lives; if it is on another machine, whether an agent of the job lives here."""
    driver_lock = run / "lock.driver"
    if driver_lock.exists():  # shared: two readers must not take each other for the driver
        return not _could_lock(driver_lock, fcntl.LOCK_SH)
    return any(not _could_lock(lock, fcntl.LOCK_EX) for lock in run.parent.glob("lock.*"))


def identity() -> Frame:
    """The unique identity of this process: host, boot, pid and start time."""
    return {"host": socket.gethostname(), "boot": _boot(), "pid": os.getpid(), "start": start_of(os.getpid())}


def start_of(pid: int) -> int | None:
    """The start of a process, in clock ticks since boot (proc(5), stat field 22); None if unknown."""
    with contextlib.suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])
    return None


def end_driver(run: Path, driver: Frame, by: str, grace: float | None, *, force: bool) -> bool:
    """Ask the driver of a run to stop its job, if it lives and is on this machine; else False.

    Its user is that of the lock: a stranger's record may name any process. `grace`: not that of the launch.
    """
    pid, lock = driver["pid"], run / "lock.driver"
    lives = lock.exists() and is_held(run) and start_of(pid) == driver.get("start") is not None
    if not lives or os.stat(f"/proc/{pid}").st_uid != lock.stat().st_uid:
        return False
    write_atomically(run / "stop.json", stop_record(by, grace), 0o600)
    os.kill(pid, signal.SIGKILL if force else signal.SIGTERM)
    return True


def stop_record(by: str, grace: float | None) -> bytes:
    """The content of stop.json."""
    return json.dumps({"by": by, "time": time.time(), "grace": grace}).encode()


def stop_by_agent(folder: Path, hosts: list[str], by: str, grace: float | None) -> bool:
    """Ask the driver of a job, which is elsewhere, to stop the job, through the head's agent on this host."""
    for head in hosts[:1]:
        record = Path(JobPaths(str(folder)).agent(head))
        # On a home that hosts share, it may name a socket that is not here.
        with contextlib.suppress(OSError, ValueError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(os.path.join(record.read_text(), "agent"))
            stream = connection.makefile("rwb")
            write_frame(stream, {"hello": "stop", "by": by, "grace": grace})
            return read_frame(stream) is not None
    return False


def _folders(root: Path) -> list[str]:
    names = (path.name for path in root.iterdir()) if root.is_dir() else ()
    return sorted(name for name in names if not name.startswith("."))  # .JOB.new is on its way here


def _could_lock(lock: Path, kind: int) -> bool:
    # NFS grants an exclusive lock only on a file that is open for writing (flock(2)).
    with open(lock, "r+b") as file, contextlib.suppress(OSError):
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        return True
    return False


def _load(path: Path) -> dict[str, Any]:
    missing = FileNotFoundError, NotADirectoryError
    if not os.path.isfile(path):  # a FIFO hides no job
        return {}
    with contextlib.suppress(*missing, ValueError, RecursionError), open_regular(path) as file:
        text = file.read(MOST_BYTES)
        if len(text) < MOST_BYTES and values_in(text) <= MOST_VALUES:
            loaded = json.loads(text.decode())
            return loaded if isinstance(loaded, dict) else {}
    return {}


def _has(loaded: dict[str, Any], kinds: dict[str, Any]) -> bool:
    return all(isinstance(loaded.get(name), kind) for name, kind in kinds.items())


def _boot() -> str:
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""


def _why_failed(failure: dict[str, Any]) -> str:
    where = [f"rank {failure['rank']}"] if failure.get("rank") is not None else []
    where += [f"on {failure['host']}" if where else failure["host"]] if failure.get("host") else []
    return ": ".join(part for part in (" ".join(where), failure.get("reason", "")) if part)


def _why_lost(run: Path, record: dict[str, Any]) -> str:
    driver = record["driver"]
    if driver["host"] == socket.gethostname() and driver["boot"] != _boot():
        return f"{driver['host']} was restarted while the job ran there"
    message = _tail(run / "driver.log")
    gone = f"its driver on {driver['host']} (process {driver['pid']}) ended without a result"
    return f"{gone}: {message}" if message else gone


def _last_line(run: Path) -> str:
    """The last line of rank 0; its host is the head, which has its log in any case."""
    logs = [
        path
        for folder in (run, run.parent)
        for path in (folder / "logs").glob(RankLog(0, "*", 0, "out").name)
    ]
    return _tail(max(logs, key=lambda path: path.stat().st_mtime)) if logs else ""


def _tail(path: Path) -> str:
    """The last line of a file that is not blank."""
    with contextlib.suppress(OSError), open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
        lines = file.read().decode(errors="replace").replace("\r", "\n").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ""
