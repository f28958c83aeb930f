"""monitored_barrier: its time-out names the ranks that did not come.

It only uses the group's key-value store, so it cannot get stuck in MPI. The words are Gloo's.
"""

from __future__ import annotations

import time
from typing import Any

from .exceptions import TimedOutError

_NAP = 0.002  # seconds between two requests


class MonitoredBarrier:
    """The monitored barriers of a group, of which `prefix` starts the keys."""

    def __init__(self, store: Any, prefix: str, rank: int, size: int) -> None:
        self._store, self._prefix = store, prefix
        self._rank, self._size = rank, size
        self._number = 0

    def wait(self, seconds: float, *, wait_all_ranks: bool) -> None:
        """Return when all ranks have come; raises TimedOutError after `seconds`.

        Rank 0 waits for the others, and names the first that did not come, or all with `wait_all_ranks`.
        """
        self._number += 1
        self._store.set(self._key(self._rank), "")
        deadline = time.monotonic() + seconds
        if self._rank == 0:
            self._lead(seconds, deadline, wait_all_ranks=wait_all_ranks)
        else:
            self._follow(seconds, deadline)
        self._store.delete_key(self._key(self._rank))

    def _lead(self, seconds: float, deadline: float, *, wait_all_ranks: bool) -> None:
        absent: list[int] = []
        for rank in range(1, self._size):
            if not self._comes(self._key(rank), deadline):
                absent.append(rank)
                if not wait_all_ranks:
                    break
        self._store.set(self._key("result"), "failed" if absent else "passed")
        if self._number > 1 and not absent:  # all have read the result before
            self._store.delete_key(f"{self._prefix}/{self._number - 1}/result")
        if absent:
            words = f"Rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))} failed to pass"
            raise TimedOutError(
                f"Rank 0 timed out in monitoredBarrier: {words} monitoredBarrier in {seconds * 1000:g} ms"
            )

    def _follow(self, seconds: float, deadline: float) -> None:
        result = self._key("result")
        if not self._comes(result, deadline) or self._store.get(result) != b"passed":
            raise TimedOutError(
                f"Rank {self._rank} successfully reached monitoredBarrier, but received errors while waiting "
                f"for send/recv from rank 0, in {seconds * 1000:g} ms: another rank did not come"
            )

    def _comes(self, key: str, deadline: float) -> bool:
        while not self._store.check([key]):
            if time.monotonic() > deadline:
                return False
            time.sleep(_NAP)
        return True

    def _key(self, of: int | str) -> str:
        return f"{self._prefix}/{self._number}/{of}"
