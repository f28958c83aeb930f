"""When the ranks of an attempt printed their first lines, for `--timings`."""

from __future__ import annotations

from ..timings import Timings


class FirstLines:
    """Notes when the first rank and when the last rank printed its first line."""

    def __init__(self, timings: Timings, ranks: int) -> None:
        self._timings, self._missing, self._began = timings, {*range(ranks)}, timings.now()
        self._ranks = ranks

    def output(self, rank: int, host: str, stream: str, text: str) -> None:
        """What a rank printed."""
        if rank in self._missing:
            self._missing.discard(rank)
            if len(self._missing) == self._ranks - 1:
                self._timings.note("first rank's first line", self._began)
            if not self._missing:
                self._timings.note("last rank's first line", self._began)

    def launcher(self, host: str, text: str) -> None:
        """Ignored: the line is not of a rank."""
