"""`launch`: a job as an object, and its result; `run`: a function in every rank, and its values."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal, TextIO, TypeVar

from ..cli.command import Declaration, Source
from ..cli.commands import load
from ..cli.option_values import new_job
from ..cli.project import with_defaults
from ..cli.shared import RUNS_FOLDER
from ..core.connect.requests import JOBS, WrittenFiles
from ..core.decode import MALFORMED, from_json
from ..core.errors import MusterError, UsageError
from ..core.job import find
from ..core.job.bounded import content_of, value_of
from ..core.job.find import LocalRuns, LocatedJob
from ..core.text.terminal import harmless, harmless_lines
from ..core.text.text import describe_code, nearest, status_of
from ..core.wire.job_folders import FILES_FOLDER
from ..core.wire.os_errors import explain
from ..core.wire.users import own_name
from ..features.returned_values import driver, wire
from ..features.returned_values.driver import CALL, MOST_RETURNED, PYTHON, name_of
from .keywords import LaunchFlags, RunFlags

if TYPE_CHECKING:
    from typing_extensions import Unpack


class JobError(MusterError):
    """A job failed. Its text is the verdict."""

    def __init__(self, result: JobResult, text: str = "") -> None:
        super().__init__(harmless_lines(text) if text else result.verdict)
        self.result, self.exit_status = result, result.exit_status


class RankError(JobError):
    """The function raised an exception in a rank. All of it is text: nothing of a host is unpickled.

    `type_name`: the name of the class of the exception; `text`: its message.
    """

    def __init__(self, result: JobResult, rank: int, type_name: str, text: str, traceback: str) -> None:
        host = next((end.host for end in result.ranks if end.rank == rank), "")
        type_name, text, traceback = harmless(type_name), harmless_lines(text), harmless_lines(traceback)
        super().__init__(result, f"rank {rank} on {host}: {type_name}: {text}\n\n{traceback}".rstrip())
        self.rank, self.host = rank, host
        self.type_name, self.text, self.traceback = type_name, text, traceback


@dataclass(frozen=True)
class RankEnd:
    """The end of a rank: its exit code, negative for a signal; None if it did not report one."""

    rank: int
    host: str
    local_rank: int
    code: int | None
    ended: float | None


@dataclass(frozen=True)
class FirstFailure:
    """The first thing that went wrong. docs/reference/json.md has the meanings of `kind`."""

    kind: str
    rank: int | None
    host: str | None
    reason: str
    time: float
    tail: tuple[str, ...]


@dataclass(frozen=True)
class HostFiles:
    """What the program wrote on a host: beside its code, and into $MUSTER_OUT. `Job.get` fetches it."""

    host: str
    beside: WrittenFiles
    out: WrittenFiles


@dataclass(frozen=True)
class JobResult:
    """The result of a job: the facts of its result.json."""

    job: str
    launcher: str
    state: Literal["done", "failed", "stopped"]
    exit_status: int
    attempt: int
    hosts: tuple[str, ...]
    ranks: tuple[RankEnd, ...]
    first_failure: FirstFailure | None
    started: float
    ended: float
    written: tuple[HostFiles, ...] = ()
    folder: Path = Path()
    """The folder of its run, with logs, metrics and the page."""

    @property
    def verdict(self) -> str:
        """The verdict, as a launch prints it; of a run without the file, as on a full disk, its reason."""
        try:
            text = content_of(self.folder / "verdict.txt").decode(errors="replace")
        except OSError as error:
            reason = self.first_failure.reason if self.first_failure else f"exit status {self.exit_status}"
            text = f"{self.job}: {reason} (no verdict here: {explain(error)})"
        return harmless_lines(text.rstrip("\n"))

    def raise_on_error(self) -> None:
        """`JobError` with the verdict, unless every rank ended with 0."""
        if self.exit_status:
            raise JobError(self)


def read_result(folder: Path) -> JobResult | None:
    """The result in the folder of a run; None if there is none yet."""
    path = folder / "result.json"
    try:
        result: JobResult = from_json(JobResult, value_of(content_of(path)))
    except FileNotFoundError:
        return None
    except (OSError, *MALFORMED) as error:
        raise MusterError(f"{path}: {error}") from None
    if first := result.first_failure:
        tail = tuple(map(harmless, first.tail))
        first = replace(first, reason=harmless(first.reason), tail=tail)
    written = tuple(
        replace(on_host, beside=_shown(on_host.beside), out=_shown(on_host.out)) for on_host in result.written
    )
    return replace(result, folder=folder, first_failure=first, written=written)


def _shown(files: WrittenFiles) -> WrittenFiles:
    return replace(files, largest=harmless(files.largest))


# Not `-m`: a json.py in the working folder would shadow ours.
_START = (
    "import sys; sys.path[:] = [path for path in sys.path if path]; "
    "from muster.deploy.api.driver_process import main; main()"
)
_REST_SECONDS = 5.0
"""How long output is awaited after the end: an SSH master of the user may keep the pipe open."""


class LaunchError(MusterError):
    """A command ended before there was a job, or could not do what it was asked."""

    def __init__(self, reason: str, exit_status: int = 1) -> None:
        super().__init__(harmless_lines(reason))  # it may quote a host, and Python prints it as it is
        self.exit_status = exit_status


class CommandProcess:
    """A command that runs, and its end."""

    def __init__(
        self,
        command: str,
        values: Mapping[str, Any],
        sources: Sequence[Source] = (),
        *,
        show: bool = True,
        **others: object,
    ) -> None:
        """`show`: print its output here. `others`: see `Declaration.run`."""
        request_end, self._request = os.pipe()
        answer, answer_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(request_end), str(answer_end)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(request_end, answer_end),
                start_new_session=True,  # Ctrl-C reaches it through `Job.wait`
            )
        finally:
            os.close(request_end)
            os.close(answer_end)
        request = {"command": command, "values": values, "sources": sources, "others": others}
        os.write(self._request, json.dumps(request).encode() + b"\n")
        self._status, self._text = 1, ""
        self._ended = threading.Event()
        copies = []
        for stream, screen in ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr)):
            assert stream is not None  # noqa: S101  # PIPE
            copies.append(_thread(partial(_copy, stream, screen if show else None)))
        _thread(partial(self._await_end, answer, copies))

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its end; returns whether it has ended."""
        return self._ended.wait(seconds)

    def terminate(self, *, force: bool = False) -> None:
        """Send it SIGTERM, after which it ends its job; or with `force` SIGKILL."""
        if not self.has_ended:
            self._process.send_signal(signal.SIGKILL if force else signal.SIGTERM)

    def error(self) -> MusterError | None:
        """The error with which it ended, if it did."""
        if not self._status:
            return None
        text = self._text or f"the driver ended early: {describe_code(self._status)}"
        if self._status == UsageError.exit_status:
            return UsageError(text)
        return LaunchError(text, status_of(self._status))

    def _await_end(self, answer: int, copies: Sequence[threading.Thread]) -> None:
        with os.fdopen(answer) as file:
            text = file.read()
        self._status = self._process.wait()
        for copy in copies:
            copy.join(_REST_SECONDS)
        os.close(self._request)
        if text:
            end = json.loads(text)
            self._status, self._text = end["status"], end["text"]
        self._ended.set()


def _copy(stream: IO[bytes], screen: TextIO | None) -> None:
    """Show a stream until its end. Nothing is lost to the command if it cannot be shown."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with stream:
        while part := os.read(stream.fileno(), 1 << 16):
            if screen is not None:
                with contextlib.suppress(Exception):  # it is closed, or an object of the program
                    screen.write(decoder.decode(part))
                    screen.flush()


def _thread(act: partial[None]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


LOOK_SECONDS = 0.1
STOP_SECONDS = 60.0
"""The time that a driver has to end its job, beyond the grace of its ranks; agents end what it leaves."""


def launch(
    script: str | os.PathLike[str] = "", *arguments: str, show: bool = True, **flags: Unpack[LaunchFlags]
) -> Job:
    """Run a program on every host, and return its job once its ranks are started.

    `arguments`: of the program. `show`: print here what the ranks print. `flags`: the long flags of `muster
    launch`. The defaults of the project hold here too. Raises a `MusterError` if the job does not start.
    """
    keywords: dict[str, object] = {**flags}
    if script:
        keywords["script"] = script
    if arguments:
        keywords["args"] = shlex.join(arguments)
    return start(keywords, show=show)


def start(keywords: Mapping[str, object], *, show: bool, call: str = "") -> Job:
    """Start a job. `call`: the folder with the function that it runs, if it does."""
    command = load("launch")
    values, sources = with_defaults(command, values_of(command, keywords))
    job, runs = new_job(), Path(values.get("--runs", RUNS_FOLDER)).absolute()
    process = CommandProcess("launch", values, sources, show=show, job=job, call=call)
    started = Job(job, runs, process, is_detached=bool(values.get("--detach")), show=show)
    if not (values.get("--slurm") or values.get("--wait")):  # a queue may be long
        started._await_start()
    return started


def values_of(command: Declaration, keywords: Mapping[str, object]) -> dict[str, Any]:
    """The values of flags by their names; `UsageError` for one that a command line may not have either.

    None is the same as no value.
    """
    by_field = {flag.field: flag for flag in command.flags.values()}
    values = {}
    for name, value in keywords.items():
        if name not in by_field:
            raise UsageError(f"a launch has no keyword {name}{nearest(name, by_field)}")
        if value is not None:
            flag = by_field[name]
            values[flag.name] = flag.accepted(name, _plain(value, flag.kind))
    return values


def _plain(value: object, kind: type) -> object:
    """A value as a command line has it: paths and numbers may be texts, and variables NAME=VALUE."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return [f"{name}={text}" for name, text in value.items()]
    return str(value) if kind is str and type(value) is int else value


class Job:
    """A job that this program has launched. As a context manager it is stopped at the end of the block."""

    def __init__(
        self, job: str, runs: Path, process: CommandProcess, *, is_detached: bool, show: bool
    ) -> None:
        self.id, self._runs, self._process, self._show = job, runs, process, show
        self._is_detached = is_detached

    def __repr__(self) -> str:
        return f"<Job {self.id}: {self.state}>"

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.done:
            self.stop()

    @property
    def folder(self) -> Path:
        """The folder of its run: logs, metrics, result, page. That of a detached job arrives with `wait`."""
        return self._runs / self.id

    @property
    def state(self) -> str:
        """As `muster status` shows it: running, done, failed, stopped or lost; at first starting."""
        if located := self._located():
            return located.state.state
        return "detached" if self._is_detached and not self._process.error() else "starting"

    @property
    def done(self) -> bool:
        """Whether it has a result here, or will never have one."""
        return read_result(self.folder) is not None or (self._process.has_ended and not self._is_detached)

    @property
    def result(self) -> JobResult:
        """Its result; `MusterError` if it has none yet, or never started."""
        if result := read_result(self.folder):
            return result
        if not self._process.has_ended:
            raise MusterError(f"{self.id} has no result yet; job.wait() waits for it")
        raise self._process.error() or MusterError(f"{self.id} has no result: it was not run from here")

    def wait(self, timeout: float | None = None) -> JobResult:
        """Wait for its end, and return its result, also that of a failed job. TimeoutError after `timeout`.

        Ctrl-C stops the job, then raises KeyboardInterrupt. A detached job continues.
        """
        try:
            self._await(timeout)
            if self._is_detached and read_result(self.folder) is None and not self._process.error():
                attach = {"--job": self.id, "--runs": str(self._runs)}
                self._process = CommandProcess("attach", attach, show=self._show)
                self._await(timeout)
        except KeyboardInterrupt:
            self._end(self._process)
            raise
        return self.result

    def stop(self) -> JobResult:
        """End the job on every host, and return its result. A job that is over stays as it is."""
        if self._is_detached:
            stop = CommandProcess("stop", {"--job": self.id, "--runs": str(self._runs)}, show=self._show)
            stop.wait()
            if error := stop.error():
                raise error
            return self.wait()
        if located := self._located():
            for _ in find.stop(located, f"by {own_name()} on {socket.gethostname()}"):
                pass
            self._process.wait(STOP_SECONDS + located.state.grace)  # it writes the page of the run
        self._end(self._process)
        return self.result

    def get(self, path: str = "") -> Path:
        """Fetch what the program wrote, beside its code and into $MUSTER_OUT; returns the folder here.

        `path`: only the files at or below it.
        """
        values = {"--file": self.id, "--runs": str(self._runs), **({"--to": path} if path else {})}
        command = CommandProcess("get", values, show=self._show)
        command.wait()
        if error := command.error():
            raise error
        return self.folder / FILES_FOLDER

    def logs(self, rank: int | None = None) -> str:
        """The output so far: of one rank; or of all, each line with its rank and host.

        Control characters are replaced, because the text may be printed. The files of the logs keep them.
        """
        if not (located := self._located()):
            return ""
        lines = [line for line in find.printed(located, rank=rank, follow=False) if line.rank is not None]
        if rank is not None:
            return harmless_lines("".join(line.text for line in lines))
        named = ((f"[{line.rank} {line.host}] ", line.text) for line in lines)
        return "".join(f"{name}{harmless(text)}\n" for name, texts in named for text in texts.splitlines())

    def _located(self) -> LocatedJob | None:
        records = LocalRuns(self._runs)
        found = records.ask(JOBS, job=self.id).jobs if (self.folder / "job.json").is_file() else ()
        return LocatedJob(found[0], records) if found else None

    def _await_start(self) -> None:
        try:
            while not (self._process.wait(LOOK_SECONDS) or (self.folder / "job.json").is_file()):
                pass
        except KeyboardInterrupt:
            self._end(self._process)
            raise
        error = self._process.error() if self._process.has_ended else None
        if error and not (self.folder / "job.json").is_file():
            raise error

    def _await(self, timeout: float | None) -> None:
        if not self._process.wait(timeout):
            raise TimeoutError(f"{self.id} still runs after {timeout:g} s")

    def _end(self, process: CommandProcess) -> None:
        """End a command in an orderly way; a second Ctrl-C ends it at once."""
        seconds = STOP_SECONDS + (located.state.grace if (located := self._located()) else 0.0)
        for force in (False, True):
            process.terminate(force=force)
            with contextlib.suppress(KeyboardInterrupt):
                if process.wait(seconds):
                    return


T = TypeVar("T")
DATA = f"{CALL}_data"


def run(
    function: Callable[..., T], *arguments: object, show: bool = True, **flags: Unpack[RunFlags]
) -> list[T]:
    """Call a function with these arguments in every rank, and return the value of each rank, in order.

    The values are plain: None, bool, int, float, str, bytes, and list, tuple, set and dict of them. A
    function of an importable module is sent by its name, any other with its code. The program's working tree
    travels as in every launch. Raises `RankError` for an exception of the function, `JobError` for any other
    failure, and another `MusterError` if the job does not start.
    """
    for name in ("script", "module", "args", "dry_run"):
        if name in flags:
            raise UsageError(f"run() runs a function and takes no {name}; launch() does")
    with tempfile.TemporaryDirectory(prefix="muster-call-") as folder:
        write_call(Path(folder), function, arguments)
        called = f"{function.__module__}.{getattr(function, '__qualname__', '')}"
        keywords = {**flags, "module": CALL, "args": called}
        with start(keywords, show=show, call=folder) as job:
            result = job.wait()
    return [_value(result, rank) for rank in _ranks(result)]


def write_call(folder: Path, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """Write the files with which a rank calls the function (returned_values/in_rank/muster_call.py)."""
    import cloudpickle

    try:
        call = cloudpickle.dumps((function, arguments))
    except Exception as error:  # whatever an object's own method raises
        raise UsageError(
            f"{function!r} cannot be sent to the ranks: {type(error).__name__}: {error}"
        ) from error
    data = folder / DATA
    data.mkdir()
    (data / "call.pickle").write_bytes(call)
    if b"cloudpickle" in call:  # it has code, which only this version of Python reads; a name has none
        (folder / PYTHON).write_text("{}.{}".format(*sys.version_info))
    shutil.copy(Path(driver.__file__).parent / "in_rank" / f"{CALL}.py", folder)
    shutil.copy(wire.__file__, data / "plain_values.py")
    package = Path(cloudpickle.__file__).parent
    shutil.copytree(package, data / package.name, ignore=shutil.ignore_patterns("__pycache__"))


def _ranks(result: JobResult) -> list[int]:
    """All ranks, that of the first failure first if the job failed."""
    first = result.first_failure.rank if result.first_failure else None
    return sorted((end.rank for end in result.ranks), key=lambda rank: (rank != first, rank))


def _value(result: JobResult, rank: int) -> Any:
    """The value that a rank returned. `RankError` or `JobError` if it returned none."""
    path = result.folder / name_of(rank, result.attempt)
    try:
        record = value_of(content_of(path, MOST_RETURNED))
        if error := record.get("error"):
            raise RankError(result, rank, str(error["type"]), str(error["text"]), str(error["traceback"]))
        result.raise_on_error()
        return wire.decoded(record["value"])
    except FileNotFoundError:
        result.raise_on_error()
        raise JobError(result, f"rank {rank}: its value did not arrive here; see {result.folder}") from None
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise MusterError(f"{path}: not the value of a rank: {error}") from None
