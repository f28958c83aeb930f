"""Which ranks share a disk, and which disk keeps a copy of the files of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Disks:
    """The disks of a job, by the lowest rank that sees each; `of_rank` has that of every rank."""

    of_rank: Sequence[int]

    @property
    def every(self) -> list[int]:
        """The disks, in the order of their lowest ranks."""
        return sorted(set(self.of_rank))

    def ranks(self, disk: int) -> list[int]:
        """Return the ranks that see a disk."""
        return [rank for rank, seen in enumerate(self.of_rank) if seen == disk]

    def neighbour(self, rank: int) -> int | None:
        """Return the rank of the next disk that keeps a copy of this rank's files; None if all share one."""
        every = self.every
        if len(every) == 1:
            return None
        mine = self.of_rank[rank]
        there = self.ranks(every[(every.index(mine) + 1) % len(every)])
        return there[self.ranks(mine).index(rank) % len(there)]

    def senders(self, rank: int) -> list[int]:
        """Return the ranks whose files this rank keeps a copy of."""
        return [other for other in range(len(self.of_rank)) if self.neighbour(other) == rank]
