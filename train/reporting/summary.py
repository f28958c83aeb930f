"""The first line of a run, which describes the job, and the last, which has the result."""

from __future__ import annotations

from ..job.group import Group


def headline(group: Group) -> str:
    """Return what runs: `6 ranks on 3 hosts, backend gloo, launched by mpirun`."""
    launched = "alone" if group.ranks.launcher == "single" else f"by {group.ranks.launcher}"
    where = f"{_count(group.world_size, 'rank')} on {_count(group.host_count, 'host')}"
    return f"{where}, backend {group.backend}, launched {launched}"


def verdict(group: Group, accuracy: float, seconds: float) -> str:
    """Return the result, for programs to read: `accuracy=0.9812 ranks=4 hosts=2 ... seconds=12.3`."""
    return (
        f"accuracy={accuracy:.4f} ranks={group.world_size} hosts={group.host_count} "
        f"backend={group.backend} launcher={group.ranks.launcher} seconds={seconds:.1f}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
