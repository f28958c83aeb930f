"""The line of this process that a terminal redraws in place. Any other output removes it first."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TextIO

from .columns import columns_of, cut

ERASE = "\r\x1b[K"


class LiveLine:
    """The last line of the terminal. `draw` gets text that is harmless (terminal.py).

    Every writer of this process calls `remove` before its own text; threads hold `lock` for both.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.quiet_since = time.monotonic()
        """When other output was written last."""
        self._drawn = ""
        self._stream: TextIO | None = None
        self._is_line_open = False
        """Whether the other output ends within a line, such as a question."""

    def draw(self, stream: TextIO, text: str) -> None:
        """Show a text in place of the one before, no wider than the terminal. No text: remove the line."""
        with self.lock:
            text = cut(text, columns_of(stream) - 1)
            if text == self._drawn or self._is_line_open:
                return
            self._erase()
            if text:
                stream.write(text)
                stream.flush()
                self._drawn, self._stream = text, stream

    def remove(self, text: str, *, is_terminal: bool) -> None:
        """Remove the line, because `text` is written next."""
        with self.lock:
            self._erase()
            self.quiet_since = time.monotonic()
            if is_terminal and text:
                self._is_line_open = not text.endswith("\n")

    def _erase(self) -> None:
        if self._drawn and self._stream:
            stream, self._drawn = self._stream, ""
            with contextlib.suppress(OSError, ValueError):  # its terminal is gone
                stream.write(ERASE)
                stream.flush()


live_line = LiveLine()
"""That of this process."""
