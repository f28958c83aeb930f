"""Reads the output of a job from the logs of its run, in the order in which they were written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from .files import open_regular
from .rank_logs import RankLog

LAST_BYTES = 4096
MOST_BYTES = 1 << 24  # of a file that are read at once: a host may have made it


class RunOutput:
    """Reads the logs of a run in the order in which they were written."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self.at = 0
        """The bytes of `logs/order` that were read."""
        self._read: dict[str, int] = {}

    def skip(self, end: int = 1 << 62) -> None:
        """Pass over the present output, at most to this position of `logs/order`."""
        for size, name in self._next(1 << 62, end):
            self._read[name] = self._read.get(name, 0) + size

    def take(self, rank: int | None = None, most: int = 1 << 18) -> tuple[list[tuple[str, str]], bool]:
        """The next texts, about `most` bytes of them, and whether there is more."""
        texts: list[tuple[str, str]] = []
        taken = 0
        for size, name in self._next(most):
            start = self._read.get(name, 0)
            self._read[name] = start + size
            taken += size
            if rank is None or ((log := RankLog.of_name(name)) and log.rank == rank):
                with open_regular(self._logs / name) as file:
                    file.seek(start)
                    text = file.read(max(0, min(size, MOST_BYTES)))
                    texts.append((name, text.decode(errors="surrogateescape")))
        return texts, taken > 0

    def _next(self, most: int, end: int = 1 << 62) -> Iterator[tuple[int, str]]:
        """Entries of `logs/order`, until they cover `most` bytes; the last line may be half written."""
        with contextlib.suppress(FileNotFoundError), open_regular(self._logs / "order") as file:
            file.seek(self.at)
            while most > 0 and self.at < end and (line := file.readline(LAST_BYTES)).endswith(b"\n"):
                self.at += len(line)
                size, _, name = line.decode().rstrip("\n").partition(" ")
                most -= int(size)
                yield int(size), os.path.basename(name)
