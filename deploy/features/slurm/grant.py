"""Gets an allocation from salloc, and releases it. It lasts as long as this process."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from ...core.errors import MusterError, UsageError
from ...core.waits import waiting
from .allocation import PREFIX, Allocation, allocation_of
from .job_state import gres_of, problems_of, queued, why_never
from .programs import ask, error_of, for_slurm, host_names, missing

_MARK = "muster:"
# The command of salloc: it prints the allocation's variables between two marks, then waits for the end of its
# input, which is also the end of this process. A wrapper of salloc may print too.
_HOLDER = f"echo {_MARK}; env | grep '^{PREFIX}'; echo {_MARK}; exec cat >/dev/null"
_GRANTED = re.compile(r"salloc: (?:Pending job allocation|job|Granted job allocation) (\d+)\b")
_RELEASED = re.compile(r"salloc: (?:Relinquishing job|(?:error: )?Job allocation \d+ has been revoked)")
_KEPT = re.compile(r"salloc: error: Unable to clean up")
_OVER = re.compile(r"Invalid job id|already complet", re.IGNORECASE)
FIRST_SECONDS, ASK_SECONDS, RELEASE_SECONDS, CANCEL_SECONDS = 1.0, 5.0, 15.0, 30.0


def own_allocation(environ: Mapping[str, str]) -> Allocation:
    """The allocation in which this process runs; `UsageError` if there is none."""
    return allocation_of(environ, host_names, gres_of)


@contextlib.contextmanager
def request_allocation(
    options: Sequence[str], environ: Mapping[str, str], report: Callable[[str], None], seconds: float | None
) -> Iterator[Allocation]:
    """An allocation from salloc with these options; leaving the context releases it.

    `report` gets a line whenever Slurm's reason to wait changes, and one if the allocation may remain.
    `seconds`: the time-out; None for no limit. `UsageError` quotes salloc if it refuses the options.
    """
    if job := environ.get("SLURM_JOB_ID"):
        raise UsageError(
            f"--slurm {' '.join(options)}: this shell is inside of Slurm's allocation {job}; "
            "--slurm without options uses it"
        )
    salloc = _Salloc(options)
    try:
        with waiting("hosts of Slurm"):
            allocation = salloc.wait(report, seconds)
        yield allocation
    finally:
        if note := salloc.release():
            report(note)


class _Salloc:
    """A running salloc: lines of its errors and of its command's output, in one queue."""

    def __init__(self, options: Sequence[str]) -> None:
        # --no-kill: a node that fails does not end the others; the driver judges that.
        argv = ["salloc", "--no-kill", *options, "sh", "-c", _HOLDER]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                argv,
                env=for_slurm(os.environ),
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except FileNotFoundError:
            raise missing("salloc") from None
        self._options, self._job = " ".join(options), ""
        self._variables: dict[str, str] | None = None
        self._granted = False
        self._errors: list[str] = []
        self._lines: queue.Queue[tuple[str, str | None]] = queue.Queue()
        self._readers = {
            name: threading.Thread(target=self._read, args=(name,), daemon=True)
            for name in ("stdout", "stderr")
        }
        for reader in self._readers.values():
            reader.start()

    def _read(self, name: str) -> None:
        for line in getattr(self._process, name):
            self._lines.put((name, line.rstrip("\n")))
        self._lines.put((name, None))

    def wait(self, report: Callable[[str], None], seconds: float | None) -> Allocation:
        """The allocation, once salloc's command has printed its variables."""
        deadline = time.monotonic() + seconds if seconds else None
        last, pause = "", FIRST_SECONDS
        while not self._granted:
            left = pause if deadline is None else min(pause, deadline - time.monotonic())
            try:
                name, line = self._lines.get(timeout=max(0.0, left))
            except queue.Empty:
                state, pause = _state(self._job), ASK_SECONDS
                if why := why_never(self._job, state):
                    raise UsageError(f"--slurm {self._options!r}: Slurm never gives hosts: {why}") from None
                if state not in {"", last}:
                    report(f"Slurm's job {self._job} waits: {state}")
                    last = state
                if deadline and time.monotonic() >= deadline:
                    why = f": {last}" if last else ""
                    raise MusterError(f"Slurm gave no hosts within {seconds:.0f} s{why}") from None
                continue
            if name == "stderr":
                self._read_message(line)
            elif line is None:
                raise self._refused()
            else:
                self._read_output(line)
        return allocation_of(self._variables or {}, host_names, gres_of)

    def _read_output(self, line: str) -> None:
        """A line of salloc's command, or of a wrapper around salloc."""
        if line == _MARK:
            self._granted, self._variables = self._variables is not None, self._variables or {}
        elif self._variables is not None:
            name, _, value = line.partition("=")
            self._variables[name] = value
            self._job = self._variables.get("SLURM_JOB_ID", self._job)

    def _read_message(self, line: str | None) -> None:
        if line:
            self._errors.append(line)
            match = _GRANTED.match(line)
            self._job = self._job or (match[1] if match else "")

    def _refused(self) -> MusterError:
        """salloc ended without an allocation: it refused its options, or the allocation was revoked."""
        self._end()
        why = error_of(self._errors) or f"salloc ended with status {self._process.returncode}"
        if self._job:
            return MusterError(
                f"Slurm's job {self._job} got no hosts: {'; '.join([why, *problems_of(self._job)])}"
            )
        return UsageError(f"--slurm {self._options!r}: {why}")

    def _end(self) -> None:
        """Wait for the end of salloc, and read its last messages."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(RELEASE_SECONDS)
        self._readers["stderr"].join(ASK_SECONDS)
        with contextlib.suppress(queue.Empty):
            while True:
                name, line = self._lines.get_nowait()
                if name == "stderr":
                    self._read_message(line)

    def release(self) -> str:
        """Give the hosts back, or leave the queue; returns a note if Slurm may have kept the job."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]  # stdin=PIPE
        if not self._granted:  # it waits in the queue, where no command reads the input
            self._process.terminate()
        self._end()
        if self._process.poll() is None:
            self._process.terminate()
        elif any(map(_RELEASED.match, self._errors)) and not any(map(_KEPT.match, self._errors)):
            return ""
        return _cancelled(self._job) if self._job else ""


def _cancelled(job: str) -> str:
    """Cancel a job that Slurm may still have; returns a note if that fails."""
    deadline = time.monotonic() + CANCEL_SECONDS
    while True:
        try:
            ask("scancel", job)
        except MusterError as error:
            if _OVER.search(error.reason):
                return ""
            if time.monotonic() > deadline or isinstance(error, UsageError):  # UsageError: no scancel here
                return (
                    f"note: Slurm may still hold the hosts of its job {job} ({error.reason}); "
                    f"when slurmctld answers again, run: scancel {job}"
                )
            time.sleep(1.0)
        else:
            return ""


def _state(job: str) -> str:
    with contextlib.suppress(MusterError):
        return queued(job) if job else ""
    return ""
