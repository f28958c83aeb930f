"""Shows progress while the user waits: a bar on a terminal, drawn by rich; else a line for each tenth."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from .terminal import harmless, own_stream

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn

BAR, TITLE = 24, 44  # columns
MB = "MB"
MANY = 8
"""Progress is shown from this number of hosts on."""


def line(done: int, total: int, seconds: float, unit: str = MB) -> str:
    """A line of progress: `51 %, 396 of 784 MB, 88 MB/s` of bytes, `50 %, 8 of 16 hosts` of anything else."""
    part = f"{100 * done // total if total else 100} %"
    if unit != MB:
        return f"{part}, {done} of {total} {unit}"
    speed = done / seconds / 1e6 if seconds > 0 else 0.0
    return f"{part}, {done / 1e6:.0f} of {total / 1e6:.0f} MB, {speed:.0f} MB/s"


class Progress:
    """Shows how much of a total is done. Any thread may call `show` and `add`.

    `what`: the title before the bar. `unit`: of the total; MB stands for bytes, which are shown in millions.
    `least`: below this total, nothing is shown.
    """

    def __init__(self, stream: TextIO, what: str = "", *, unit: str = MB, least: int = 0) -> None:
        self._stream, self._began, self._tenth = own_stream(stream), time.monotonic(), -1
        self._what, self._unit, self._least = harmless(what), unit, least
        self._done, self._adding = 0, threading.Lock()
        self._bar: Bar | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def add(self, more: int, total: int) -> None:
        """Count more of a total."""
        with self._adding:
            self._done += more
            self._show(self._done, total)

    def show(self, done: int, total: int, what: str = "") -> None:
        """Show how much of a total is done. `what`: the new title, if any."""
        with self._adding:
            self._what = harmless(what) or self._what
            self._show(done, total)

    def _show(self, done: int, total: int) -> None:
        if total < self._least:
            return
        if self._stream.isatty():
            self._draw(done, total)
            return
        tenth = done * 10 // total if total else 10
        if tenth > self._tenth:
            title = f"{self._what}: " if self._what else ""
            seconds = time.monotonic() - self._began
            self._stream.write(f"{title}{line(done, total, seconds, self._unit)}\n")
            self._stream.flush()
        self._tenth = max(tenth, self._tenth)

    def _draw(self, done: int, total: int) -> None:
        """On a terminal: rich is imported by the first bar, and redraws it a few times in a second."""
        if self._bar is None:
            from rich import console, progress  # noqa: PLC0415

            screen = console.Console(file=self._stream, force_terminal=True)
            self._bar = progress.Progress(*_columns(self._unit), console=screen, transient=True)
            self._bar.add_task(self._what, total=total)
            self._bar.start()
        title = self._what if len(self._what) <= TITLE else f"{self._what[: TITLE - 1]}…"
        self._bar.update(self._bar.task_ids[0], completed=done, total=total, description=title)
        self._bar.refresh()


def _columns(unit: str) -> list[ProgressColumn]:
    from rich import progress, table  # noqa: PLC0415

    title = progress.TextColumn("{task.description}", markup=False, table_column=table.Column(no_wrap=True))
    shared = [title, progress.BarColumn(BAR), progress.TaskProgressColumn()]
    if unit == MB:
        return [
            *shared,
            *(progress.DownloadColumn(), progress.TransferSpeedColumn(), progress.TimeRemainingColumn()),
        ]
    counted = progress.TextColumn(f"{{task.completed}}/{{task.total}} {unit}", markup=False)
    return [*shared, counted, progress.TimeElapsedColumn()]
