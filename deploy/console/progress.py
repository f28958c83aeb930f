"""Progress: a line that is redrawn in place on a terminal, and a new line for each tenth elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TextIO

from .terminal import own_stream

BAR = 24


def bar(done: int, total: int, seconds: float) -> str:
    """A line of progress: `[######------]  51 %  396 of 784 MB, 88 MB/s`."""
    part = done / total if total else 1.0
    filled = int(part * BAR)
    speed = done / seconds / 1e6 if seconds > 0 else 0.0
    picture = "#" * filled + "-" * (BAR - filled)
    return f"[{picture}] {part:4.0%}  {done / 1e6:.0f} of {total / 1e6:.0f} MB, {speed:.0f} MB/s"


class Progress:
    """Redraws a line in place on a terminal; elsewhere writes a new line for each tenth."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._began, self._tenth = own_stream(stream), time.monotonic(), -1

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream.isatty():
            self._stream.write("\r\x1b[K")

    def show(self, done: int, total: int) -> None:
        """Show the progress."""
        tenth = done * 10 // total if total else 10
        if self._stream.isatty():
            self._stream.write(f"\r{bar(done, total, time.monotonic() - self._began)}\x1b[K")
        elif tenth > self._tenth:
            self._stream.write(bar(done, total, time.monotonic() - self._began) + "\n")
        self._stream.flush()
        self._tenth = tenth
