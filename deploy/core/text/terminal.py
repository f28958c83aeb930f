"""Makes remote text safe for a terminal. Only this module does that.

`harmless_streams` guards the whole program: all output and error messages of any command pass `harmless`.
Only the screen and the live line write control codes themselves, through `own_stream`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from typing import TextIO, cast

from .live_line import live_line

# Control characters of remote output become pictures (␛): no host may drive this terminal.
_HARMLESS = {code: 0x2400 + code for code in range(32) if code != 9} | {127: 0x2421}
_HARMLESS |= dict.fromkeys(range(128, 160), 0xFFFD)
# Invisible characters: they reverse or break a line, or make two texts look alike. All of Unicode's category
# Cf but the signs before Arabic, Syriac and Kaithi numbers, and the two separators of lines. Some of them
# join the parts of an emoji, which are then shown apart; the logs keep every byte.
INVISIBLE = (
    *((0xAD, 0xAD), (0x61C, 0x61C), (0x180E, 0x180E), (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F)),
    *((0xFEFF, 0xFEFF), (0xFFF9, 0xFFFB), (0x13430, 0x1343F), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A)),
    (0xE0000, 0xE007F),
)
for first, last in INVISIBLE:
    _HARMLESS |= dict.fromkeys(range(first, last + 1), 0xFFFD)
# Sequences of the kind SGR: colours, bold, underlined. A text that was cut may end within one.
_SGR = re.compile(r"\x1b\[[\d;:]{0,64}(?:m|\Z)")
# Those that a terminal gets. Concealed and blinking text, and other fonts, are left out.
_SHADE = r"[34]8[;:](?:5[;:]\d{1,3}|2[;:]{1,2}\d{1,3}[;:]\d{1,3}[;:]\d{1,3})"
_COLOUR = re.compile(rf"\x1b\[(?:(?:0?[0-479]|2[1-79]|[349][0-79]|10[0-7]|{_SHADE})?(?:;|(?=m))){{0,16}}m")
RESET = "\x1b[0m"


def harmless(text: str) -> str:
    """The text without control and invisible characters; undecodable bytes become replacement characters.

    Colours are removed, and control characters become pictures.
    """
    shown = without_colours(text).translate(_HARMLESS)
    return shown.encode("utf-8", "replace").decode("utf-8", "replace")


def without_colours(text: str) -> str:
    """The text without its sequences for colours."""
    return _SGR.sub("", text) if "\x1b" in text else text


def harmless_in_colours(line: str) -> str:
    """A line for a terminal: made harmless, with its colours, which end with it."""
    colours = _COLOUR.findall(line)
    if not colours:
        return harmless(line)
    parts = _COLOUR.split(line)
    shown = "".join(harmless(part) + colour for part, colour in zip(parts, [*colours, ""], strict=True))
    return shown if colours[-1] in {RESET, "\x1b[m"} else shown + RESET


def harmless_lines(text: str) -> str:
    """Make a text of several lines harmless."""
    return "\n".join(map(harmless, text.split("\n")))


class HarmlessStream(io.TextIOBase):
    """A stream that makes every text harmless and writes it to `stream`.

    `may_fail`: for messages beside a command's output. A closed terminal must not change its result.
    """

    def __init__(self, stream: TextIO, *, may_fail: bool = False) -> None:
        self.stream = stream
        self._ignored: tuple[type[OSError], ...] = (OSError,) if may_fail else ()

    def write(self, text: str, /) -> int:
        """Write the text without control characters."""
        with contextlib.suppress(*self._ignored), live_line.lock:
            live_line.remove(text, is_terminal=self.stream.isatty())
            self.stream.write(harmless_lines(text))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(*self._ignored):
            self.stream.flush()

    def isatty(self) -> bool:
        """Whether the underlying stream is a terminal."""
        return self.stream.isatty()

    def fileno(self) -> int:
        """The file that child processes inherit."""
        return self.stream.fileno()

    @property
    def errors(self) -> str:  # type: ignore[override]  # a plain attribute in the base class
        """How the underlying stream encodes; without it input() has no history and no cursor keys."""
        return self.stream.errors or "strict"

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in the base class
        """The encoding of the underlying stream, which Invoke asks for."""
        return self.stream.encoding


@contextlib.contextmanager
def harmless_streams() -> Iterator[None]:
    """Guard stdout and stderr of this process for the block. Closed ones become /dev/null."""
    _open_closed()
    before = sys.stdout, sys.stderr
    sys.stdout = cast("TextIO", HarmlessStream(sys.stdout))
    sys.stderr = cast("TextIO", HarmlessStream(sys.stderr, may_fail=True))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _open_closed() -> None:
    """Open the standard streams that were closed (`>&-`), before another file gets their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def own_stream(stream: TextIO | None = None) -> TextIO:
    """The stream under a guarded one, for callers that write control codes and make remote text harmless.

    By default it is that of standard error.
    """
    stream = stream or sys.stderr
    return stream.stream if isinstance(stream, HarmlessStream) else stream
