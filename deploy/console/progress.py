"""Progress where one waits: a bar on a terminal, drawn by rich, and a new line for each tenth elsewhere."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from .terminal import harmless, own_stream

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

BAR = 24


def bar(done: int, total: int, seconds: float) -> str:
    """A line of progress: `[######------]  51 %  396 of 784 MB, 88 MB/s`."""
    part = done / total if total else 1.0
    filled = int(part * BAR)
    speed = done / seconds / 1e6 if seconds > 0 else 0.0
    picture = "#" * filled + "-" * (BAR - filled)
    return f"[{picture}] {part:4.0%}  {done / 1e6:.0f} of {total / 1e6:.0f} MB, {speed:.0f} MB/s"


class Progress:
    """Shows how many bytes of something are done. Any thread may call `show` and `add`.

    `what`: a word or two before the bar. `least`: bytes below which nothing is worth showing.
    """

    def __init__(self, stream: TextIO, what: str = "", *, least: int = 0) -> None:
        self._stream, self._began, self._tenth = own_stream(stream), time.monotonic(), -1
        self._what, self._least = harmless(what), least
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
        """Count more bytes of a total."""
        with self._adding:
            self._done += more
            self.show(self._done, total)

    def show(self, done: int, total: int) -> None:
        """Show that so many bytes of a total are done."""
        if total < self._least:
            return
        if self._stream.isatty():
            self._draw(done, total)
            return
        tenth = done * 10 // total if total else 10
        if tenth > self._tenth:
            words = f"{self._what} " if self._what else ""
            self._stream.write(f"{words}{bar(done, total, time.monotonic() - self._began)}\n")
            self._stream.flush()
        self._tenth = max(tenth, self._tenth)

    def _draw(self, done: int, total: int) -> None:
        """On a terminal: rich is imported by the first bar, and redraws it a few times in a second."""
        if self._bar is None:
            from rich import console, progress  # noqa: PLC0415

            columns = (
                progress.TextColumn("{task.description}", markup=False),
                *(progress.BarColumn(BAR), progress.TaskProgressColumn()),
                *(progress.DownloadColumn(), progress.TransferSpeedColumn(), progress.TimeRemainingColumn()),
            )
            screen = console.Console(file=self._stream, force_terminal=True)
            self._bar = progress.Progress(*columns, console=screen, transient=True)
            self._bar.add_task(self._what, total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)
        self._bar.refresh()
