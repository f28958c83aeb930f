"""What an attempt of a job has on this host and ends with it: its reports, and the watch over the driver."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import signal
import termios
import threading
import time
from collections.abc import Callable
from typing import IO

from ..wire.frames import Frame

LONGEST_LINE = 1 << 16  # a longer line is passed on in pieces
SILENCE_SECONDS = 12.0  # the driver pings every 2 s (core/connect/listener.py)
STDIN = 0


class Reports:
    """Sends the reports about an attempt until it is over: a late one must not seem to be about the next."""

    def __init__(self, send: Callable[[Frame], None]) -> None:
        self._send, self._over = send, False
        self._sending = threading.Lock()

    def __call__(self, frame: Frame) -> None:
        """Send a report. A request to stop the job is about all of its attempts."""
        with self._sending:
            if not self._over or frame["event"] == "stop-asked":
                self._send(frame)

    def end(self) -> None:
        """Send no more."""
        with self._sending:
            self._over = True

    def pump(self, name: str, stream: IO[bytes]) -> None:
        """Send each line of a launcher's stream."""
        while line := stream.readline(LONGEST_LINE):
            text = line.decode(errors="surrogateescape")
            self({"event": "launcher", "stream": name, "text": text})


class Heartbeat:
    """Ends this agent when the driver is silent: a network that drops packets closes no lifeline."""

    def __init__(self) -> None:
        self.heard = 0.0
        self._over = threading.Event()

    def hear(self) -> None:
        """Note a sign of life of the driver. From the first one on, its silence counts."""
        first, self.heard = not self.heard, time.monotonic()
        if first and not self._over.is_set():
            threading.Thread(target=self.end_after_silence, daemon=True).start()

    def end(self) -> None:
        """The silence does not count any more: no process is left that would have to be ended."""
        self._over.set()

    def end_after_silence(self) -> None:
        """Requests that wait unread, while the agent works on another one, are signs of life too."""
        waited = 0
        while time.monotonic() - self.heard < SILENCE_SECONDS:
            if self._over.wait(0.5):
                return
            waits = unread(STDIN)
            if waits > waited:
                self.heard = time.monotonic()
            waited = waits
        os.kill(os.getpid(), signal.SIGTERM)


def unread(descriptor: int) -> int:
    """The bytes that wait in a pipe or socket."""
    count = array.array("i", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]
