"""Copies of a launch's events besides its own folder: `--events`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ..common.os_errors import explain
from ..errors import UsageError
from ..launch.job_events import JobEvent, OnEvent
from .shared import print_note

STDOUT = "-"


class EventCopies:
    """Writes each event as a line of JSON. If that fails, the job continues, and stderr gets one note."""

    def __init__(self, file: TextIO, name: str) -> None:
        self._file, self._name = file, name
        self._failed = False

    def write(self, event: JobEvent) -> None:
        """Write an event at once."""
        if self._failed:
            return
        try:
            self._file.write(event.line())
            self._file.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            self._failed = True
            why = explain(error) if isinstance(error, OSError) else str(error)
            print_note(f"note: --events {self._name} ends here: {why}")


@contextlib.contextmanager
def copies(events: str) -> Iterator[tuple[OnEvent, ...]]:
    """The listener of `--events`, if it was given; UsageError for a file that cannot be written."""
    if not events:
        yield ()
    elif events == STDOUT:
        yield (EventCopies(sys.stdout, events).write,)
    else:
        try:
            file = Path(events).open("w", encoding="utf-8")  # noqa: SIM115  # closed below
        except OSError as error:
            raise UsageError(f"--events {events}: {explain(error)}") from None
        try:
            yield (EventCopies(file, events).write,)
        finally:
            with contextlib.suppress(OSError):  # a full disk shows only now
                file.close()
