"""Who has come and who has left, written where every rank can read it: the group's key-value store.

A rank that has left the program, or has not yet come to a collective, cannot be asked over MPI: nobody
answers for it there. The store is only used by ranks that have been waiting for a while already.
"""

from __future__ import annotations

from typing import Any


class Board:
    """One rank's view of the board of one group."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank = store, rank
        self._others = [other for other in range(size) if other != rank]

    @classmethod
    def on(cls, store: Any, rank: int, size: int) -> Board | None:
        """Return the board, or None where torch gives only a placeholder for a store."""
        try:
            store.set(f"mpi/hello/{rank}", "")
        except (AttributeError, RuntimeError):
            return None
        return cls(store, rank, size)

    def come(self, number: int) -> None:
        """Say that this rank waits in the collective of that number."""
        self._store.set(f"mpi/come/{number}/{self._rank}", "")

    def missing(self, number: int) -> list[int]:
        """The ranks that have not said that they wait there."""
        return [other for other in self._others if not self._store.check([f"mpi/come/{number}/{other}"])]

    def leave(self) -> None:
        """Say that this rank takes part in nothing any more."""
        self._store.set(f"mpi/left/{self._rank}", "")

    def left(self) -> list[int]:
        """The ranks that have left."""
        return [other for other in self._others if self._store.check([f"mpi/left/{other}"])]
