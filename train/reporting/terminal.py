"""What a person sees while it trains: lines of rank 0 on stdout, and a progress bar on a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping

from ..job.group import Group
from ..job.ranks import Ranks

BAR = 20  # characters


class Terminal:
    """Writes lines, and below them a bar, which the next line replaces. Only rank 0 writes."""

    def __init__(self, ranks: Ranks, environ: Mapping[str, str]) -> None:
        self.writes = ranks.rank == 0
        self.columns = _columns(ranks, environ) if self.writes else 0
        self._drawn_at = 0.0
        self._drawn = ""

    def line(self, text: str) -> None:
        """Write a whole line, on rank 0."""
        if self.writes:
            self._write(f"{' ' * len(self._drawn)}\r{text}\n" if self._drawn else f"{text}\n")
            self._drawn = ""

    def bar_is_due(self) -> bool:
        """Whether to draw now: at most ten times a second, so that drawing costs nothing."""
        return self.columns > 0 and time.monotonic() - self._drawn_at >= 0.1

    def bar(self, label: str, part: float, figures: str) -> None:
        """Draw `part`, from 0 to 1, between `label` and `figures`; ends in a carriage return."""
        done = round(part * BAR)
        text = f"{label} [{'#' * done}{'.' * (BAR - done)}] {figures}"[: self.columns - 1]
        self._write(text.ljust(len(self._drawn)) + "\r")
        self._drawn, self._drawn_at = text, time.monotonic()

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()  # a pipe is buffered, and under a launcher stdout is one


def _columns(ranks: Ranks, environ: Mapping[str, str]) -> int:
    """Return the width of the terminal that shows stdout, 0 if none does.

    A launcher that shows stdout on a terminal sets MUSTER_TERMINAL to the number of its columns. Under mpirun
    only that counts: Open MPI gives every rank a pseudo-terminal, wherever its output goes.
    """
    given = environ.get("MUSTER_TERMINAL", "")
    if given.isdecimal():
        return int(given)
    if ranks.from_mpi or not sys.stdout.isatty():
        return 0
    return shutil.get_terminal_size().columns


def headline(group: Group) -> str:
    """Return the first line, what runs: `6 ranks on 3 hosts, backend gloo, launched by mpirun`."""
    launched = "alone" if group.ranks.launcher == "single" else f"by {group.ranks.launcher}"
    where = f"{_count(group.world_size, 'rank')} on {_count(group.host_count, 'host')}"
    return f"{where}, backend {group.backend}, launched {launched}"


def verdict(group: Group, accuracy: float, seconds: float) -> str:
    """Return the last line, the result for programs to read: `accuracy=0.9812 ranks=4 ... seconds=12.3`."""
    return (
        f"accuracy={accuracy:.4f} ranks={group.world_size} hosts={group.host_count} "
        f"backend={group.backend} launcher={group.ranks.launcher} seconds={seconds:.1f}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
