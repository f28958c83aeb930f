"""Gets an allocation from salloc, and releases it. It lasts as long as this process."""

from __future__ import annotations

import contextlib
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..errors import MusterError, UsageError
from ..waits import waiting
from .allocation import PREFIX, Allocation, allocation_of
from .programs import error_of, host_names, missing, queued

# The command of salloc: it prints the allocation's variables, then waits for the end of its input, which is
# also the end of this process.
_HOLDER = f"env | grep '^{PREFIX}'; echo; exec cat >/dev/null"
_GRANTED = re.compile(r"salloc: (?:Pending job allocation|job|Granted job allocation) (\d+)\b")
ASK_SECONDS, RELEASE_SECONDS = 5.0, 15.0


def own_allocation(environ: Mapping[str, str]) -> Allocation:
    """The allocation in which this process runs; `UsageError` if there is none."""
    return allocation_of(environ, host_names)


@contextlib.contextmanager
def request_allocation(
    options: Sequence[str], environ: Mapping[str, str], report: Callable[[str], None], seconds: float | None
) -> Iterator[Allocation]:
    """An allocation from salloc with these options; leaving the context releases it.

    `report` gets a line whenever Slurm's reason to wait changes. `seconds`: the time-out; None for no limit.
    `UsageError` quotes salloc if it refuses the options.
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
        salloc.release()


class _Salloc:
    """A running salloc: lines of its errors and of its command's output, in one queue."""

    def __init__(self, options: Sequence[str]) -> None:
        # --no-kill: a node that fails does not end the others; the driver judges that.
        argv = ["salloc", "--no-kill", *options, "sh", "-c", _HOLDER]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except FileNotFoundError:
            raise missing("salloc") from None
        self._options, self._granted = " ".join(options), False
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
        variables: dict[str, str] = {}
        errors: list[str] = []
        job = last = ""
        while True:
            left = ASK_SECONDS if deadline is None else min(ASK_SECONDS, deadline - time.monotonic())
            try:
                name, line = self._lines.get(timeout=max(0.0, left))
            except queue.Empty:
                state = _state(job)
                if state not in {"", last}:
                    report(f"Slurm's job {job} waits: {state}")
                    last = state
                if deadline and time.monotonic() >= deadline:
                    why = f": {last}" if last else ""
                    raise MusterError(f"Slurm gave no hosts within {seconds:.0f} s{why}") from None
                continue
            if name == "stderr":
                errors.append(line or "")
                job = _job(errors)
            elif line is None:
                raise self._refused(errors)
            elif line:
                key, _, value = line.partition("=")
                variables[key] = value
            else:
                self._granted = True
                return allocation_of(variables, host_names)

    def _refused(self, errors: list[str]) -> MusterError:
        """salloc ended without an allocation: it refused its options, or the allocation was revoked."""
        self._readers["stderr"].join(ASK_SECONDS)
        with contextlib.suppress(queue.Empty):
            while True:
                errors.append(self._lines.get_nowait()[1] or "")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ASK_SECONDS)
        why = error_of(errors) or f"salloc ended with status {self._process.returncode}"
        if job := _job(errors):
            return MusterError(f"Slurm's job {job} got no hosts: {why}")
        return UsageError(f"--slurm {self._options!r}: {why}")

    def release(self) -> None:
        """Give the hosts back, or leave the queue."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]  # stdin=PIPE
        if not self._granted:  # it waits in the queue, where no command reads the input
            self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(RELEASE_SECONDS)
            return
        self._process.terminate()


def _job(errors: Sequence[str]) -> str:
    """Slurm's number of the job, once salloc has printed it."""
    return next((match[1] for line in errors if (match := _GRANTED.match(line))), "")


def _state(job: str) -> str:
    with contextlib.suppress(MusterError):
        return queued(job) if job else ""
    return ""
