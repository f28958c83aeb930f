"""What a person sees while it trains: lines of rank 0 on stdout."""

from __future__ import annotations

import sys

from ..job.group import Job
from ..job.ranks import Ranks


class Terminal:
    """Writes lines on rank 0, and nothing on the others."""

    def __init__(self, ranks: Ranks) -> None:
        self.writes = ranks.rank == 0

    def line(self, text: str) -> None:
        if self.writes:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()  # a pipe is buffered, and under a launcher stdout is one


def headline(group: Job) -> str:
    """Return the first line, what runs: `6 ranks on 3 hosts, backend gloo, launched by mpirun`."""
    launched = "alone" if group.ranks.launcher == "single" else f"by {group.ranks.launcher}"
    where = f"{_count(group.world_size, 'rank')} on {_count(group.host_count, 'host')}"
    return f"{where}, backend {group.backend}, launched {launched}"


def verdict(group: Job, accuracy: float, seconds: float) -> str:
    """Return the last line, the result for programs to read: `accuracy=0.9812 ranks=4 ... seconds=12.3`."""
    return (
        f"accuracy={accuracy:.4f} ranks={group.world_size} hosts={group.host_count} "
        f"backend={group.backend} launcher={group.ranks.launcher} seconds={seconds:.1f}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
