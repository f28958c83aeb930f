"""Runs a command on this host for `muster run`, reports its output and exit code, and ends its processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import IO

from ....core.agent.processes import PR_SET_CHILD_SUBREAPER, Reaper, die_with_agent, end_descendants, prctl
from ....core.agent.stuck import described
from ....core.wire.frames import Frame

MOST_OUTPUT = 1 << 20
DRAIN_SECONDS = 1.0  # processes that the command left behind may hold its output open


class CommandRunner:
    """Starts commands as they are, without a shell, and reports how each command ended."""

    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send

    def do_run(self, request: Frame, payload: bytes) -> Frame:
        """Start a command in the user's home. `limit`: the most seconds that it may take, or None."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        run = _RunningCommand(self._send, request["limit"])
        try:
            run.start(request["argv"])
        except OSError as error:
            reason = f"{request['argv'][0]}: {error.strerror}\n"
            run.report(127 if isinstance(error, FileNotFoundError) else 126, reason.encode())
        return {}


class _RunningCommand:
    def __init__(self, send: Callable[..., None], seconds: float | None) -> None:
        self._send, self._seconds = send, seconds
        self._output, self._cut = bytearray(), 0
        self._ended = threading.Event()
        self._code = 0

    def start(self, argv: list[str]) -> None:
        process = Reaper(lambda name, code: None).start(
            argv,
            self._end,
            cwd=os.path.expanduser("~"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_agent,  # the child only calls prctl
        )
        assert process.stdout is not None  # noqa: S101  # stdout=PIPE
        # The thread owns the pipe: its last owner closes it, even with output still in it.
        pump = threading.Thread(target=self._pump, args=(process.stdout,), daemon=True)
        pump.start()
        threading.Thread(target=self._finish, args=(pump,), daemon=True).start()

    def report(
        self, code: int, output: bytes, *, timed_out: bool = False, left: Sequence[Frame] = ()
    ) -> None:
        ran = {"event": "ran", "code": code, "cut": self._cut, "timed_out": timed_out, "left": [*left]}
        self._send(ran, output)

    def _end(self, code: int) -> None:
        self._code = code
        self._ended.set()

    def _pump(self, stream: IO[bytes]) -> None:
        with stream, contextlib.suppress(OSError):
            while chunk := os.read(stream.fileno(), 1 << 16):
                room = MOST_OUTPUT - len(self._output)
                self._output += chunk[:room]
                self._cut += max(0, len(chunk) - room)

    def _finish(self, pump: threading.Thread) -> None:
        in_time = self._ended.wait(self._seconds)
        if in_time:
            pump.join(DRAIN_SECONDS)
        left = described(end_descendants(), {})  # stuck in the kernel: df on a file system that is gone
        pump.join(DRAIN_SECONDS)
        self.report(self._code, bytes(self._output), timed_out=not in_time, left=left)
