"""Which rank has left a training loop that others are still in, by the key-value store of the job.

A rank that leaves sends a message (sums.py), which names it where the others send one as well. If they are in
a collective of torch's own, such as DDP's, that fails, or both wait: then only the store shows who has left.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

import torch.distributed as dist

from .failure import TrainError
from .group import Job

LOOK = 5.0  # seconds in one step after which a rank asks, and then again
ASKED = 50.0  # times a second, by all ranks of a job
OF_BACKENDS = ("gloo", "NCCL", "closed by peer", "reset by peer")


class Departure:
    """Who leaves a loop first; a thread looks for that in a step that takes long."""

    def __init__(self, group: Job) -> None:
        """Every rank must call it, in the same order as others_wait."""
        self._group, self._key = group, f"muster/left/{next(group.long_works)}"
        self._step, self._over = 0, threading.Event()

    def begin(self) -> None:
        """Begin to look, if there are other ranks."""
        if self._group.world_size > 1:
            threading.Thread(target=self._look, name="muster loop", daemon=True).start()

    def in_step(self, step: int) -> None:
        self._step = step

    def leave(self) -> None:
        """Write that this rank leaves the loop, if it is the first."""
        self._over.set()
        with suppress(RuntimeError):  # the store is gone with rank 0, and nobody reads it
            if self._group.world_size > 1 and self._group.store.add(self._key, 1) == 1:
                self._group.store.set(f"{self._key}/first", f"{self._group.rank} {self._step}")

    def explain(self, error: BaseException | None) -> None:
        """Raise TrainError in place of an error of a collective, if a rank has left and others have not."""
        self._over.set()
        words = str(error)
        if isinstance(error, RuntimeError) and (
            isinstance(error, dist.DistError) or any(word in words for word in OF_BACKENDS)
        ):
            left = None
            with suppress(RuntimeError):
                left = self._first()
            if left:
                raise TrainError(
                    f"the ranks do different things: {left}, and other ranks go on; a collective failed: "
                    f"{words.splitlines()[0]}\nevery rank must leave a loop in the same step"
                ) from error

    def _look(self) -> None:
        seen = -1
        while not self._over.wait(max(LOOK, self._group.world_size / ASKED)):
            step, seen = seen, self._step
            with suppress(RuntimeError):
                if step == seen and (left := self._first()) and not self._over.is_set():
                    sys.stderr.write(
                        f"note: {left}, and rank {self._group.rank} is still in step {seen}. If it waits in "
                        "a collective, that is why: every rank must leave a loop in the same step\n"
                    )
                    return

    def _first(self) -> str | None:
        """Return which rank has left first; None if none has, or all have."""
        store, key = self._group.store, f"{self._key}/first"
        if not store.check([key]) or store.add(self._key, 0) == self._group.world_size:
            return None
        rank, step = (int(number) for number in store.get(key).split())
        return f"rank {rank} ({self._group.hosts[rank]}) has left the loop in step {step}"
