"""A keeper on the driver's own machine, below the driver: what `localhost` in a hosts file means."""

from __future__ import annotations

import contextlib
import subprocess
import sys

from deploy.channel import BOOTSTRAP, LostError
from deploy.errors import HostError
from deploy.node.wire import Readable, Writable


class LocalPipe:
    """A keeper as a child process. Its own session: a Ctrl-C on the terminal is the driver's to handle."""

    def __init__(self, python: str | None) -> None:
        try:
            self._process = subprocess.Popen(
                [python or sys.executable, "-c", BOOTSTRAP],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(
                "python.missing",
                f"--python {python}: {error.strerror}",
                "install Python 3.9 or newer, or name another with --python",
            ) from None

    @property
    def pid(self) -> int:
        """The keeper's process."""
        return self._process.pid

    @property
    def reader(self) -> Readable:
        """The keeper's stdout."""
        assert self._process.stdout is not None  # noqa: S101  # stdout=PIPE
        return self._process.stdout

    @property
    def writer(self) -> Writable:
        """The keeper's stdin: its lifeline."""
        assert self._process.stdin is not None  # noqa: S101  # stdin=PIPE
        return self._process.stdin

    def last_words(self) -> LostError:
        """The last line of stderr, and the exit status."""
        self._process.wait()
        assert self._process.stderr is not None  # noqa: S101  # stderr=PIPE
        lines = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        status, said = self._process.returncode, lines[-1] if lines else "no message"
        return LostError(
            f"the keeper ended with status {status}: {said}",
            "a keeper needs Python 3.9 or newer; --python names another",
            kind="python.failed",
        )

    def close(self) -> None:
        """Close the lifeline, and wait until the keeper has ended everything."""
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]  # stdin=PIPE
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
