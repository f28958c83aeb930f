"""What the launch shows while it runs: lines with their rank and host, and one line of progress."""

from __future__ import annotations

import os
import re
import shutil
from typing import TextIO

LABEL_WIDTH = 20
_COLOURS = (36, 33, 35, 32, 34, 31)
# Control characters of remote output become pictures (␛): no host may drive this terminal.
_HARMLESS = {code: 0x2400 + code for code in range(32) if code != 9} | {127: 0x2421}
_HARMLESS |= dict.fromkeys(range(128, 160), 0xFFFD)


_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")


def harmless(text: str) -> str:
    """The text without anything that a terminal would obey; undecodable bytes as replacement characters."""
    return text.translate(_HARMLESS).encode("utf-8", "replace").decode("utf-8", "replace")


class Screen:
    """A watcher that prints `[3 node2] text`; what ends in a carriage return stays in place at the end."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.terminal = stream.isatty()
        self.coloured = self.terminal and "NO_COLOR" not in os.environ
        self._progress = ""

    @property
    def columns(self) -> int | None:
        """What is left of a terminal's width for a rank's own text; None if this is no terminal."""
        return max(20, shutil.get_terminal_size().columns - LABEL_WIDTH) if self.terminal else None

    def output(self, rank: int, host: str, stream: str, text: str) -> None:
        """Print the lines; what ends in a carriage return is progress."""
        label = f"[{rank} {host}]"
        colour = _COLOURS[rank % len(_COLOURS)]
        before = f"\x1b[{colour}m{label}\x1b[0m " if self.coloured else f"{label} "
        printed: list[str] = []
        for line in _LINE.findall(text):
            shown = harmless(line.rstrip("\r\n"))
            if line.endswith("\r"):
                self._progress = f"{label} {shown}" if shown.strip() else ""
            else:
                printed.append(f"{before}{shown}\n")
        self._print("".join(printed))

    def launcher(self, host: str, text: str) -> None:
        """Nothing: the launcher's own words are in its log, and in the verdict when they matter."""

    def say(self, text: str) -> None:
        """Print words of our own."""
        self._print(text + "\n")

    def close(self) -> None:
        """Take the progress away."""
        self._progress = ""
        self._erase()

    def _print(self, text: str) -> None:
        self._erase()
        self.stream.write(text)
        if self.terminal:
            self.stream.write(self._progress[: shutil.get_terminal_size().columns - 1])
        self.stream.flush()

    def _erase(self) -> None:
        if self.terminal:
            self.stream.write("\r\x1b[K")
