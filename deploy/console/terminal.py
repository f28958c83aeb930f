"""Remote text, made safe for a terminal: the one place that does it.

`harmless_streams` guards the whole program: whatever any command prints or ends with passes `harmless`. The
screen and the progress line alone write codes of their own, through `own_stream`.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from typing import TextIO, cast

# Control characters of remote output become pictures (␛): no host may drive this terminal.
_HARMLESS = {code: 0x2400 + code for code in range(32) if code != 9} | {127: 0x2421}


_HARMLESS |= dict.fromkeys(range(128, 160), 0xFFFD)


def harmless(text: str) -> str:
    """The text without anything that a terminal would obey; undecodable bytes as replacement characters."""
    return text.translate(_HARMLESS).encode("utf-8", "replace").decode("utf-8", "replace")


def harmless_lines(text: str) -> str:
    """The same for text of several lines."""
    return "\n".join(map(harmless, text.split("\n")))


class HarmlessStream(io.TextIOBase):
    """A stream on which every text is harmless; `stream` is what it writes to."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str, /) -> int:
        """Write the text without anything that a terminal would obey."""
        self.stream.write(harmless_lines(text))
        return len(text)

    def flush(self) -> None:
        """Flush what it writes to."""
        self.stream.flush()

    def isatty(self) -> bool:
        """Whether it ends at a terminal."""
        return self.stream.isatty()

    def fileno(self) -> int:
        """The file that child processes inherit."""
        return self.stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute there
        """The terminal's, which Invoke asks for."""
        return self.stream.encoding


@contextlib.contextmanager
def harmless_streams() -> Iterator[None]:
    """Guard stdout and stderr of this process for the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", HarmlessStream(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def own_stream(stream: TextIO) -> TextIO:
    """What a guarded stream writes to, for who makes remote text harmless and writes codes besides."""
    return stream.stream if isinstance(stream, HarmlessStream) else stream
