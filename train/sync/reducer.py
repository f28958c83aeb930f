"""A thread that sums buckets over all ranks, one after the other, while the backward pass fills the next.

`MPI_Iallreduce` would need no thread, but it makes progress only inside other calls of MPI, and it is slower
than the blocking call. The blocking call, though, polls while it waits for the other ranks, on a core that
some rank's backward pass needs. So the thread first sleeps until every rank has the bucket ready
(`MPI_Ibarrier`); then the blocking call polls only while the sum itself is made.
"""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

import torch

from ..job.mpi_world import MPI
from ..mpi_backend.direct import all_reduce_sum

NAP = 50e-6  # seconds; Linux makes about this of any shorter sleep


class Reducer:
    """`submit` flat tensors in the same order on every rank, then `wait` until each is the sum over ranks."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.queue: SimpleQueue[torch.Tensor] = SimpleQueue()
        self.done: SimpleQueue[BaseException | None] = SimpleQueue()
        self.submitted = 0
        threading.Thread(target=self._work, name="reducer", daemon=True).start()

    def submit(self, flat: torch.Tensor) -> None:
        self.queue.put(flat)
        self.submitted += 1

    def wait(self) -> None:
        """Return when every submitted tensor is summed; raises the error of the thread."""
        for _ in range(self.submitted):
            if error := self.done.get():
                raise error
        self.submitted = 0

    def _work(self) -> None:
        while True:
            flat = self.queue.get()
            try:
                self._wait_for_all_ranks()
                all_reduce_sum(self.comm, flat)
            except Exception as error:  # noqa: BLE001 - for the thread that waits
                self.done.put(error)
            else:
                self.done.put(None)

    def _wait_for_all_ranks(self) -> None:
        """Sleep until every rank is here."""
        barrier = self.comm.Ibarrier()
        while not barrier.Test():
            time.sleep(NAP)
