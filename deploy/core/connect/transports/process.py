"""An agent at the end of a child process's pipes, and one that is itself the child process."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import cast

from ...errors import HostError
from ..bootstrap import BOOTSTRAP
from ..pipe import KILLED, PYTHON_MISSING, CountingWriter, EndedError, LostError, why_ended

CLOSE_SECONDS, IMPATIENT_SECONDS = 10.0, 2.0
# The agent's source fits into it (pipe(7): 64 KiB by default): a host that reads nothing, or prints before it
# reads, must not block the driver.
PIPE_SIZE = 1 << 17
PART_BYTES = 1 << 20  # of a content that is written at once: a line of progress shows how many


class ProcessPipe:
    """A child process, in a new session: only the driver handles a Ctrl-C on the terminal."""

    remote = True
    leaves = True
    """Whether a patient close leaves a child that does not end: a running agent ends with its job."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            argv,
            env=env,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        with contextlib.suppress(OSError, AttributeError):  # the limit of a user with many pipes; not Linux
            fcntl.fcntl(cast(io.FileIO, self._process.stdin), fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        self.reader = io.BufferedReader(cast(io.FileIO, self._process.stdout), 1 << 16)
        # Without the lock of a buffer: the pipe can be closed while another thread writes.
        self.writer = CountingWriter(cast(io.FileIO, self._process.stdin).write, PART_BYTES)

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self._process.pid

    def end_and_lines(self) -> tuple[int, list[str]]:
        """Wait for the child's end; its exit status, and the lines of its stderr."""
        self._process.wait()
        errors = self._process.stderr
        assert errors is not None  # noqa: S101  # stderr=PIPE
        # A process that the child left may hold the pipe open: the master of shared SSH connections does.
        os.set_blocking(errors.fileno(), False)
        text = (errors.read() or b"").decode(errors="replace")
        return self._process.returncode, [line.strip() for line in text.splitlines() if line.strip()]

    def close(self, *, patient: bool = True) -> None:
        """Close the lifeline, and wait until the agent has ended everything; it may be out of reach."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]  # stdin=PIPE
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_SECONDS if patient else IMPATIENT_SECONDS)
            return
        if not (patient and self.leaves):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


class LocalPipe(ProcessPipe):
    """An agent on the driver's own machine, below the driver: `localhost` in a hosts file."""

    remote = False

    def __init__(self, python: str | None, env: Mapping[str, str] | None = None) -> None:
        try:
            program = os.path.expanduser(python or sys.executable)  # noqa: PTH111  # Path raises for no such user
            super().__init__([program, "-c", BOOTSTRAP], env)
        except OSError as error:
            raise HostError(
                "python.missing", f"--python {python}: {error.strerror}", PYTHON_MISSING
            ) from None

    def last_words(self, printed: str = "") -> LostError:
        """The last line of stderr, and the exit status."""
        status, lines = self.end_and_lines()
        # Only here is the process the agent itself, and no ssh.
        status = KILLED if status == -signal.SIGKILL else status
        error = why_ended(status, "\n".join(lines), printed, "")
        return EndedError(error.text, error.remedy, kind=error.kind)
