"""A command of Muster in a process of its own, started by a Python program, which shows its output.

So neither signal handlers nor a running event loop of the program matter, and it may start commands in any
thread. The process ends with the program.
"""

from __future__ import annotations

import codecs
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO, Any, TextIO

from ..cli.command import Source
from ..core.errors import MusterError, UsageError
from ..core.text.terminal import harmless_lines
from ..core.text.text import describe_code, status_of

# Not `-m`: a json.py in the working folder would shadow ours.
_START = (
    "import sys; sys.path[:] = [path for path in sys.path if path]; "
    "from muster.deploy.api.driver import main; main()"
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
        """Whether it has ended, and its output is shown."""
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
                try:
                    screen.write(decoder.decode(part))
                    screen.flush()
                except (OSError, ValueError):  # closed
                    screen = None


def _thread(act: partial[None]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread
