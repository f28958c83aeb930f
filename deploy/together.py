"""Lines of many ranks in the order of each rank, equal ones as one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple


class Line(NamedTuple):
    """A line that a rank printed."""

    rank: int
    host: str
    text: str


def together(lines: Iterable[Line]) -> list[list[Line]]:
    """Groups of equal lines of different ranks, none of which overtakes another of its own rank.

    The oldest line goes first; with it go the ranks whose next line is the same.
    """
    queues: dict[int, deque[tuple[int, Line]]] = {}
    for number, line in enumerate(lines):
        queues.setdefault(line.rank, deque()).append((number, line))
    groups = []
    while queues:
        _, oldest = min(queue[0] for queue in queues.values())
        ranks = sorted(rank for rank, queue in queues.items() if queue[0][1].text == oldest.text)
        groups.append([queues[rank].popleft()[1] for rank in ranks])
        queues = {rank: queue for rank, queue in queues.items() if queue}
    return groups
