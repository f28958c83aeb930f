"""Which ranks wait in a collective and which have left the group, in the group's key-value store.

A rank that has left the program, or has not yet entered a collective, cannot be asked over MPI: nobody
answers for it there. watched.py decides how often the store is asked.
"""

from __future__ import annotations

from typing import Any


class Presence:
    """One rank's access to the entries of its group; any method may raise RuntimeError, as torch's stores do.

    `prefix` starts its keys. No other group of the job has had it: a store may outlive a group of the same
    name.
    """

    def __init__(self, store: Any, prefix: str, rank: int, size: int) -> None:
        self._store, self._prefix = store, prefix
        self.rank, self.size = rank, size
        self._read = 0  # number of `left` entries that this rank has read

    @classmethod
    def create(cls, store: Any, prefix: str, rank: int, size: int) -> Presence | None:
        """Return the rank's access, or None where torch gives only a placeholder for a store."""
        try:
            store.check([prefix])
        except (AttributeError, RuntimeError):
            return None
        return cls(store, prefix, rank, size)

    def wait_in(self, number: int) -> None:
        """Write that this rank waits in collective `number`."""
        self._store.set(self._waiting(number, self.rank), "")

    def stop_waiting_in(self, number: int) -> None:
        """Delete what `wait_in` wrote."""
        self._store.delete_key(self._waiting(number, self.rank))

    def absent(self, number: int) -> list[int]:
        """Return the other ranks that have not written that they wait in collective `number`."""
        return self._without_entry(number, [rank for rank in range(self.size) if rank != self.rank])

    def _without_entry(self, number: int, ranks: list[int]) -> list[int]:
        """Ask for all keys in one request, and if any is missing, for each half separately."""
        if not ranks or self._store.check([self._waiting(number, rank) for rank in ranks]):
            return []
        if len(ranks) == 1:
            return ranks
        middle = len(ranks) // 2
        return self._without_entry(number, ranks[:middle]) + self._without_entry(number, ranks[middle:])

    def leave(self, completed: int) -> None:
        """Write that this rank takes part in nothing after its first `completed` collectives."""
        entry = self._store.add(f"{self._prefix}/left", 1)
        self._store.set(f"{self._prefix}/left/{entry}", f"{self.rank} {completed}")

    def newly_left(self) -> dict[int, int]:
        """Return the ranks that left since the last call, each with the collectives that it completed."""
        left = {}
        while self._store.check([key := f"{self._prefix}/left/{self._read + 1}"]):
            rank, completed = self._store.get(key).split()
            left[int(rank)] = int(completed)
            self._read += 1
        return left

    def _waiting(self, number: int, rank: int) -> str:
        return f"{self._prefix}/waiting/{number}/{rank}"
