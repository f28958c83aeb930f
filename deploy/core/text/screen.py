"""The output of a running launch: lines with their rank and host, and a progress line."""

from __future__ import annotations

import io
import os
import re
import threading
import time
from collections import deque
from collections.abc import Container, Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO

from .columns import columns_of
from .live_line import live_line
from .terminal import harmless, harmless_in_colours, own_stream
from .text import fitted, ranges

LABEL_WIDTH = 20
# On a terminal, lines wait this long for equal lines of other ranks. At most this many lines wait.
WINDOW_SECONDS, MOST_WAITING, MOST_CHARACTERS = 0.2, 1000, 1 << 20
# More lines than a person can read would only delay the driver.
MOST_LINES, LINES_PER_SECOND = 20_000, 10_000.0
_COLOURS = (36, 33, 32, 34)
"""Of labels; red is for errors alone, and magenta looks like it."""

END = "\r\n"
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+")


class Screen:
    """A watcher that prints `[3 node2] text`. A line that ends in a carriage return stays in place, last.

    On a terminal, lines keep their colours, and equal lines of several ranks become one: `[0-5] text`.
    Elsewhere each line is printed at once, because a program may read it. `only`: the ranks to show; the log
    files have all ranks. `may_drop`: of a flood of lines, show only as many as a person could read, and the
    number of the others, which are in the log files.
    """

    def __init__(self, stream: TextIO, only: Container[int] | None = None, *, may_drop: bool = False) -> None:
        self.stream = stream = own_stream(stream)
        self.may_drop = may_drop
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a Latin-1 terminal shows less, but causes no error
        self.only = only
        self.error: OSError | None = None
        """The first error of a write, after which nothing is shown: a full disk, or `| head`."""
        self.terminal = stream.isatty()
        self.coloured = self.terminal and "NO_COLOR" not in os.environ
        self._progress = ""
        self._waiting: list[PrintedLine] = []
        self._characters = 0
        self._lock = threading.RLock()
        self._left_out = 0
        self._budget, self._counted = float(MOST_LINES), time.monotonic()

    @property
    def columns(self) -> int | None:
        """The width of the terminal for the text of a rank, without its label; None without a terminal."""
        return max(20, columns_of(self.stream) - LABEL_WIDTH) if self.terminal else None

    def output(self, rank: int, host: str, stream: str, text: str) -> None:
        """Print the lines of a rank. A line that ends in a carriage return is progress."""
        if self.only is not None and rank not in self.only:
            return
        with self._lock:
            waited = bool(self._waiting)
            for line in self._affordable(text):
                if line.endswith("\r"):
                    shown = harmless(line.rstrip(END))
                    self._progress = f"[{rank} {host}] {shown}" if shown.strip() else ""
                else:
                    shown = self._shown(line)
                    self._waiting.append(PrintedLine(rank, host, shown))
                    self._characters += len(shown)
            full = len(self._waiting) > MOST_WAITING or self._characters > MOST_CHARACTERS
            if not self.terminal or full or not self._waiting:
                self._print_waiting()
            elif not waited:
                timer = threading.Timer(WINDOW_SECONDS, self._end_window)
                timer.daemon = True
                timer.start()

    def _shown(self, line: str) -> str:
        """A line of a program, with its colours on a terminal."""
        return (harmless_in_colours if self.coloured else harmless)(line.rstrip(END))

    def _affordable(self, text: str) -> list[str]:
        """The first lines of a text, as many as may be shown now. The other lines are counted."""
        if not self.may_drop:
            return _LINE.findall(text)
        now = time.monotonic()
        self._budget = min(MOST_LINES, self._budget + LINES_PER_SECOND * (now - self._counted))
        self._counted = now
        lines = [line[0] for line in islice(_LINE.finditer(text), int(self._budget))]
        self._budget -= len(lines)
        if lines and self._left_out:
            self._print_left_out()
        shown = sum(map(len, lines))
        self._left_out += text.count("\n", shown) + text.count("\r", shown) - text.count("\r\n", shown)
        return lines

    def _print_left_out(self) -> None:
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            self._print_waiting()
            self._print(f"({left_out} lines are left out here; the logs have them)\n")

    def say(self, text: str) -> None:
        """Print a message of the driver, which may quote text of a host."""
        with self._lock:
            self._print_waiting()
            self._print_left_out()
            self._print(f"{fitted(text, self.stream)}\n")

    def close(self) -> None:
        """Print the waiting lines, and remove the progress line."""
        with self._lock:
            self._print_waiting()
            self._print_left_out()
            self._progress = ""
            self._print("")

    def _end_window(self) -> None:
        with self._lock:
            if self._waiting:  # else the lines were printed meanwhile, and the screen may be closed
                self._print_waiting()

    def _print_waiting(self) -> None:
        with self._lock:
            groups = together(self._waiting) if self.terminal else [[line] for line in self._waiting]
            self._waiting, self._characters = [], 0
            self._print("".join(map(self._as_text, groups)))

    def _as_text(self, group: list[PrintedLine]) -> str:
        first = group[0]
        label = (
            f"[{first.rank} {first.host}]"
            if len(group) == 1
            else f"[{ranges([line.rank for line in group])}]"
        )
        if self.coloured and len(group) == 1:
            label = f"\x1b[{_COLOURS[first.rank % len(_COLOURS)]}m{label}\x1b[0m"
        return f"{label} {first.text}\n"

    def _print(self, text: str) -> None:
        """Write above the live line, unless an earlier write failed. The job continues: its logs have all."""
        if self.error:
            return
        try:
            with live_line.lock:
                if text:
                    live_line.remove(text, is_terminal=self.terminal)
                    self.stream.write(text)
                    self.stream.flush()
                if self.terminal:
                    live_line.draw(self.stream, self._progress)
        except OSError as error:
            self.error = error
            if isinstance(self.stream, io.TextIOWrapper):  # else Python tries to flush again at its exit
                with Path(os.devnull).open("wb") as nowhere:
                    os.dup2(nowhere.fileno(), self.stream.fileno())


class PrintedLine(NamedTuple):
    """A line that a rank printed."""

    rank: int
    host: str
    text: str


def together(lines: Iterable[PrintedLine]) -> list[list[PrintedLine]]:
    """Group equal lines of different ranks. The lines of each rank keep their order.

    The oldest line comes first, together with the ranks whose next line is the same.
    """
    queues: dict[int, deque[tuple[int, PrintedLine]]] = {}
    for number, line in enumerate(lines):
        queues.setdefault(line.rank, deque()).append((number, line))
    groups = []
    while queues:
        _, oldest = min(queue[0] for queue in queues.values())
        ranks = sorted(rank for rank, queue in queues.items() if queue[0][1].text == oldest.text)
        groups.append([queues[rank].popleft()[1] for rank in ranks])
        queues = {rank: queue for rank, queue in queues.items() if queue}
    return groups
