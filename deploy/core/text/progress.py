"""Shows what a command does while the user waits: a live line on a terminal, some lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, TextIO

from .live_line import live_line
from .terminal import harmless, own_stream
from .text import duration

VARIABLE, OFF = "MUSTER_PROGRESS", "off"
"""The environment variable with which a user, or a test of the standard error, has no progress."""
MB = "MB"
TURN_SECONDS = 0.1
TERMINAL_SECONDS, PIPE_SECONDS = 0.3, 2.0
"""How long a command may be silent before its progress is shown. Most commands end earlier."""
SHARE, MOST_PIPE_SECONDS = 0.1, 10.0
"""Elsewhere than on a terminal each line stays. There, a long stage has fewer lines: one for each tenth more
of its time, but no longer silence than this. A log of CI gets 77 lines for ten minutes, not 300."""
ELAPSED_SECONDS = 2.0
"""From this time on, the line of a stage has its time."""
Text = str | Callable[[], str]


class Progress:
    """What the command does now, as one line on stderr. Any thread may change it.

        with Progress("connecting") as progress:          # connecting; from 2 s on: connecting, 2 s
            progress.stage("starting mpirun")             # the next stage
            progress.stage(lambda: f"{len(ranks)} of 6 ranks started")   # read again for each redraw
            progress.show(3, 16)                          # starting mpirun: 3 of 16 hosts, with unit="hosts"

    On a terminal the line is redrawn in place from 0.3 s on, is never wider than the terminal, and is removed
    before any other output of this process. Elsewhere a plain line is written after 2 s without output, in a
    long stage after up to 10 s; stages that end sooner write nothing. A thread draws, so neither costs the
    command's own thread any time.
    Progresses may be nested: the inner one is shown, and a count only from its begin to its end. Close it
    before a question to the user, and before another program gets the terminal.

    `what`: the stage, or with a `unit` the title of a count; MB stands for bytes, shown in millions.
    """

    _open: ClassVar[list[Progress]] = []

    def __init__(self, what: Text = "", *, unit: str = "", stream: TextIO | None = None) -> None:
        self._stream = own_stream(stream)
        self._is_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._what, self._unit = what, unit
        self._began, self._done, self._total = time.monotonic(), 0, 0
        self._adding, self._drawing, self._closed = threading.Lock(), threading.Lock(), threading.Event()

    def __enter__(self) -> Progress:
        if os.environ.get(VARIABLE) == OFF:
            return self
        self._open.append(self)
        threading.Thread(target=self._show_until_closed, name="progress", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the line. A second time, and later stages, have no effect."""
        with self._drawing:
            self._closed.set()
            if self in self._open:
                self._open.remove(self)
                self._draw("")

    @classmethod
    def close_all(cls) -> None:
        """Remove the line for the rest of the command: a job or another program writes to the terminal."""
        for progress in [*cls._open]:
            progress.close()

    def stage(self, what: Text) -> None:
        """Begin a stage. An empty text shows nothing until the next stage."""
        self._began, self._done, self._total, self._what = time.monotonic(), 0, 0, what

    def add(self, more: int, total: int) -> None:
        with self._adding:
            self._done, self._total = self._done + more, total

    def show(self, done: int, total: int) -> None:
        """Show how much of a total is done."""
        self._done, self._total = done, total

    def text(self) -> str:
        """The line as it is now."""
        what, seconds = self._what, time.monotonic() - self._began
        parts = [what() if callable(what) else what]
        if self._total:
            parts += [counted(self._done, self._total, seconds, self._unit)]
        line = harmless(": ".join(filter(None, parts)))
        is_timed = not callable(what) and not (self._total and self._unit == MB)
        return (
            f"{line}, {duration(int(seconds))}" if line and is_timed and seconds >= ELAPSED_SECONDS else line
        )

    def _show_until_closed(self) -> None:
        while not self._closed.wait(TURN_SECONDS):
            self.refresh()

    def refresh(self) -> None:
        """Show the line as it is now, if it is the innermost one and there was no output for a while."""
        quiet = time.monotonic() - live_line.quiet_since
        age = time.monotonic() - self._began
        pace = TERMINAL_SECONDS
        if not self._is_terminal:
            pace = min(MOST_PIPE_SECONDS, max(PIPE_SECONDS, SHARE * age))
        if quiet >= pace and self._is_shown():
            text = self.text()
            with self._drawing:
                if not self._closed.is_set():
                    self._draw(text)

    def _is_shown(self) -> bool:
        """Whether it is the innermost one, apart from counts that are complete or have not begun."""
        inner = (other for other in reversed(self._open) if not (other._unit and other._done >= other._total))
        return next(inner, None) is self

    def _draw(self, text: str) -> None:
        """Show a text. A terminal or pipe that is gone must not change the result of the command."""
        with contextlib.suppress(OSError, ValueError):
            if self._is_terminal:
                live_line.draw(self._stream, text)
            elif text:
                live_line.remove(text, is_terminal=False)
                self._stream.write(f"{text}\n")
                self._stream.flush()


def counted(done: int, total: int, seconds: float, unit: str = MB) -> str:
    """`51 %, 396 of 784 MB, 88 MB/s, 4 s left` of bytes, `8 of 16 hosts` of anything else."""
    if unit != MB:
        return f"{done} of {total} {unit}"
    text = f"{100 * done // total} %, {done / 1e6:.0f} of {total / 1e6:.0f} MB"
    if seconds < ELAPSED_SECONDS or not done:
        return text
    left = f", {duration(int((total - done) * seconds / done))} left" if done < total else ""
    return f"{text}, {done / seconds / 1e6:.0f} MB/s{left}"
