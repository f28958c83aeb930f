"""The folder of one launch on the driver's machine: `runs/<job>/` with plan, logs, metrics and result."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..connect.channel import Channel
from ..connect.requests import RECORD
from ..errors import MusterError, UsageError
from ..plan.launch_plan import LaunchPlan
from ..plan.spec import MAX_LOG, LaunchSpec
from ..text.text import span
from ..wire.durable import write_atomically
from ..wire.job_folders import HOSTS_RECORD, RESERVES
from ..wire.os_errors import explain, naming
from ..wire.rank_logs import RankLog, restart_suffix
from .events import Event, JobEvent, LauncherOutput, Output, Recorded, Said
from .job_record import caller_of_stop, record_of
from .result import LaunchResult, stopped

ORDER_BYTES = 64  # about the size of an entry in the order of all logs, which grows with each log
LAST_BYTES = 1 << 13
"""Of each log that is cut, this much of its end is kept beyond the limit."""


@dataclass
class _Log:
    """A log: how much it may still grow; once it is cut, what is left out, and the end of that part."""

    host: str
    left: int
    left_out: int = 0
    last: bytearray = field(default_factory=bytearray)


class LogLimit:
    """The limit of each log of an attempt: `most` bytes, 0 for no limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._logs: dict[str, _Log] = {}

    def begin(self) -> None:
        """Another attempt begins, whose logs are other files."""
        self._logs = {}

    def within(self, name: str, host: str, content: bytes) -> bytes:
        """The part of the content that its log takes: all, once a note that it is cut here, then nothing."""
        if not self._most:
            return content
        log = self._logs.setdefault(name, _Log(host, self._most))
        log.left -= len(content) + ORDER_BYTES
        if log.left >= 0:
            return content
        is_first, log.left = not log.left_out, -1
        log.left_out += len(content)
        log.last = (log.last + content)[-LAST_BYTES:]
        return f"\n[cut here, {host} has all of it: --max-log {self._most}]\n".encode() if is_first else b""

    @property
    def _cut(self) -> dict[str, _Log]:
        return {name: log for name, log in self._logs.items() if log.left_out}

    def ends(self) -> Iterator[tuple[str, bytes]]:
        """The end of each log that is cut, to be appended when the attempt is over."""
        for name, log in self._cut.items():
            last = bytes(log.last)
            if log.left_out > len(last):  # begin with a whole line, if there is one
                last = last[last.find(b"\n") + 1 :]
            missing = log.left_out - len(last)
            yield name, (f"[{missing} bytes are left out]\n".encode() if missing else b"") + last

    @property
    def note(self) -> str:
        """The note of the verdict about logs that are cut; empty if none is."""
        logs = {name: RankLog.of_name(name) for name in self._cut}
        ranks = sorted({log.rank for log in logs.values() if log})
        launchers = sorted({self._logs[name].host for name, log in logs.items() if not log})
        of_launchers = [f"the launcher on {', '.join(launchers)}"] if launchers else []
        whose = " and ".join([*([span(ranks)] if ranks else []), *of_launchers])
        return whose and (
            f"here the logs of {whose} have only their beginning and their end: "
            f"--max-log {self._most} bytes for each log; the hosts have all"
        )


# Reserved at the start, so that verdict and result can be written even if the disk is full at the end, or has
# no inode left: a file for each of them.
RESERVED_BYTES = 1 << 17
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextlib.contextmanager
def _beginning() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MusterError(f"cannot begin the run's folder: {explain(error)}") from None


class RunFolder:
    """The paths of a run, and the writer of its logs. The layout is the same for every launcher.

    `max_log`: the bytes that each log may take, 0 for no limit. The hosts keep everything.
    `again`: an earlier driver of the job made the folder. `head`: the host with this folder, for a detached
    job; the folder is there even when an attempt does not use that host. `hosts`: the content of hosts.json.
    """

    def __init__(
        self,
        runs: Path,
        job: str,
        *,
        detached: bool = False,
        max_log: int = MAX_LOG,
        again: bool = False,
        head: str = "",
        hosts: bytes = b"",
    ) -> None:
        self._head, self._hosts = head, hosts
        self._limit = LogLimit(max_log)
        self._again = again
        self.path = runs / job
        self.logs = self.path / "logs"
        self.detached = detached
        self.record: dict[str, Any] = {}
        """The content of job.json, which identifies the job."""
        self._attempt = 0
        self._open: dict[str, IO[bytes]] = {}
        self._lock: int | None = None
        self._full = ""
        """Why writing here failed; empty as long as it works."""
        self.unwritten = ""
        """Why the verdict or the result could not be written at the end; empty if they were."""
        self._pending: list[str] = []
        """Lines of the driver before the folder exists: a refused launch leaves none."""

    @_beginning()
    def wait(self, spec: LaunchSpec, why: str) -> None:
        """Make the folder before the plan, for a job that waits for its hosts. `why`: the reason."""
        self._create()
        self._identify(spec, waiting=why)

    @_beginning()
    def begin(self, plan: LaunchPlan, left_out: Mapping[str, str] | None = None) -> None:
        """Make the folder, for the first attempt, and write the plan and job.json.

        `left_out`: the hosts that have left the job, each with the reason.
        """
        self._create()
        self._attempt = plan.spec.attempt
        self._limit.begin()
        self._write(f"plan{self._suffix}.txt", str(plan))
        left = [{"host": host, "why": why} for host, why in (left_out or {}).items()]
        self._identify(plan.spec, plan, left_out=left)

    def _identify(self, spec: LaunchSpec, plan: LaunchPlan | None = None, **more: object) -> None:
        """Write job.json."""
        folder, started = self.path.resolve(), self.record.get("started")
        known = record_of(spec, folder, detached=self.detached, head=self._head, plan=plan, started=started)
        self.record = {**known, **more}
        self._record("job.json", self.record)

    @property
    def waits(self) -> bool:
        """Whether the job waits for its hosts."""
        return "waiting" in self.record

    def _create(self) -> None:
        if self._lock is not None:
            return
        try:
            self.logs.mkdir(parents=True, exist_ok=self._again)
            self.path.chmod(0o700)
        except OSError as error:
            kind = MusterError if error.errno in FULL else UsageError
            raise kind(f"--runs {self.path.parent}: {explain(error)}") from None
        # Locked until this process ends in any way: the lock shows that the driver is alive.
        self._lock = os.open(self.path / "lock.driver", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        for name in RESERVES:
            (self.path / name).write_bytes(bytes(RESERVED_BYTES))
        # Each rank has two files: the soft limit of 1024 would be enough for only 500 ranks.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if self._hosts:
            with contextlib.suppress(OSError):  # only commands from elsewhere need it
                write_atomically(self.path / HOSTS_RECORD, self._hosts, 0o600)
        pending, self._pending = self._pending, []
        for text in pending:
            self.say(text)

    @property
    def _suffix(self) -> str:
        return restart_suffix(self._attempt)

    def log_of(self, rank: int, host: str, stream: str) -> Path:
        """The log of one stream of a rank: `logs/rank-0007@node2.err`, `...node2.restart-1.err`."""
        return self.logs / RankLog(rank, host, self._attempt, stream).name

    def on_event(self, event: Event) -> None:
        """Append what belongs into a file of the run."""
        if isinstance(event, Output):
            self._append_output(event)
        elif isinstance(event, LauncherOutput):
            self._append_launcher(event)
        elif isinstance(event, JobEvent):
            self._append_event(event)
        elif isinstance(event, Said):
            self.say(event.text)
        elif isinstance(event, Recorded):
            recorded = {**self.record.get("recorded", {}), event.name: event.value}
            self.record = {**self.record, "recorded": recorded}
            with contextlib.suppress(OSError):
                self._record("job.json", self.record)

    def append(self, name: str, text: str) -> None:
        """Append to a file without which the run is still usable."""
        if not self._full:
            with contextlib.suppress(OSError):
                _write_all(self._file(self.path / name), text.encode())

    def _append_output(self, event: Output) -> None:
        log = self.log_of(event.rank, event.host, event.stream)
        self._append(log, self._limit.within(log.name, event.host, _bytes_of(event.text)))

    def _append_launcher(self, event: LauncherOutput) -> None:
        name = f"launcher@{event.host}{self._suffix}.log"
        self._append(self.logs / name, self._limit.within(name, event.host, _bytes_of(event.text)))

    def say(self, text: str) -> None:
        """Append a line of the driver; before the folder exists, keep it until then."""
        if self._lock is None:
            self._pending.append(text)
            return
        self._append(self.logs / "driver.log", _bytes_of(f"{text}\n"))

    def keep_launched(self, launched: dict[str, Any]) -> None:
        """Write the record of this attempt (core/job/attempt_record.py)."""
        self.keep(f"launch{self._suffix}.json", json.dumps(launched, indent=1) + "\n")

    def _append_event(self, event: JobEvent) -> None:
        if not self._full:
            path = self.path / "events.jsonl"
            try:
                _write_all(self._file(path), event.line().encode())
            except OSError as error:
                self._full = explain(naming(error, str(path)))

    def ended(self, result: LaunchResult) -> LaunchResult:
        """Write the ends of the logs of an attempt that are cut.

        The returned result names these logs, and has the user if `muster stop` interrupted the driver.
        """
        for log, content in self._limit.ends():
            self._append(self.logs / log, content)
        if self._limit.note:
            result = dataclasses.replace(result, notes=(*result.notes, self._limit.note))
        if result.failure and result.failure.kind == "interrupted" and (by := caller_of_stop(self.path)):
            return dataclasses.replace(result, failure=stopped(by, result.exit_status, result.failure.at))
        return result

    def kept(self, name: str) -> str | None:
        """The text of a file that an earlier driver of the job kept; None without one."""
        path = self.path / name
        return path.read_text(errors="replace") if self._again and path.is_file() else None

    def keep(self, name: str, content: str | bytes) -> None:
        """Write a file without which the run is still usable; if that fails, `problem` has the reason."""
        folder = (self.path / name).parent
        try:
            if folder != self.path:  # the folder of a run that was removed is not made again
                folder.mkdir(exist_ok=True)
            self._write(name, content)
        except OSError as error:
            self._full = self._full or explain(error)

    def record_on(self, host: Channel, name: str, content: object, *, wait: bool = False) -> None:
        """Write a record on a host too, where any machine can ask for it. A detached driver runs there."""
        if not self.detached:
            with contextlib.suppress(MusterError):
                text = json.dumps(content, indent=2) + "\n"
                written = host.post(RECORD, job=self.path.name, name=name, text=text)
                if wait:
                    host.wait(written, 5)

    @property
    def problem(self) -> str:
        """Why this folder is incomplete; empty if it is complete."""
        return f"here: {self._full}; the hosts have all logs, {self.path} does not" if self._full else ""

    def finish(self, result: LaunchResult, verdict: str) -> str:
        """Close the logs, write the verdict, and last the result, completely or not at all.

        Returns why one of them could not be written; empty if both are.
        """
        for file in self._open.values():
            with contextlib.suppress(OSError):  # some network file systems report only now that they are full
                file.close()
        for name in RESERVES:
            with contextlib.suppress(OSError):
                (self.path / name).unlink()
        try:  # the result may fit even if the verdict does not, and programs read it
            self._write("verdict.txt", f"{verdict}\n")
        except OSError as error:
            self.unwritten = explain(error)
        try:
            self._record("result.json", result.as_json())
        except OSError as error:
            self.unwritten = explain(error)
        return self.unwritten

    def _write(self, name: str, content: str | bytes) -> None:
        """Write a file for people. It may quote text of a host that has no encoding."""
        encoded = content if isinstance(content, bytes) else content.encode(errors="replace")
        write_atomically(self.path / name, encoded, durable=False)

    def _record(self, name: str, record: Mapping[str, Any]) -> None:
        """Write a file for programs, which is complete even after a crash of this machine."""
        write_atomically(self.path / name, (json.dumps(record, indent=2) + "\n").encode())

    def _append(self, path: Path, content: bytes) -> None:
        """Append to a log, and to the order of all logs (core/wire/job_folders.py reads both)."""
        if not content or self._full:
            return  # a reader would not notice a gap
        try:
            _write_all(self._file(path), content)
            _write_all(self._file(self.logs / "order"), f"{len(content)} {path.name}\n".encode())
        except OSError as error:  # the job continues: its hosts keep everything
            self._full = explain(naming(error, str(path)))

    def _file(self, path: Path) -> IO[bytes]:
        if path.name not in self._open:
            self._open[path.name] = path.open("ab", buffering=0)
        return self._open[path.name]


def _write_all(file: IO[bytes], content: bytes) -> None:
    """Write every byte. A nearly full disk may take only a part of them before it reports an error."""
    while content:
        content = content[file.write(content) :]


def _bytes_of(text: str) -> bytes:
    """The printed bytes. A character that stands for no byte becomes a question mark."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="replace")
