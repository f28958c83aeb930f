"""A thread that adds up buckets over all ranks, one after the other, while backward fills the next.

`MPI_Iallreduce` would need no thread, but it moves only while somebody calls MPI, and it is slower than the
blocking call. The blocking call, though, spins while it waits for the other ranks, and so takes a core from
somebody's backward pass. So the thread first waits, asleep, until every rank has the bucket ready
(`MPI_Ibarrier`); what is left to spin for is the sum itself.
"""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

import torch
from mpi4py import MPI

from ..mpi_backend.buffers import REDUCED_AT_ONCE

NAP = 50e-6  # seconds; about what Linux makes of any shorter sleep


class Reducer:
    """`submit` flat tensors in the same order on every rank, then `wait` until each is the sum over ranks."""

    def __init__(self, comm: MPI.Intracomm, operation: MPI.Op) -> None:
        self.comm = comm
        self.operation = operation
        self.queue: SimpleQueue[torch.Tensor] = SimpleQueue()
        self.done: SimpleQueue[BaseException | None] = SimpleQueue()
        self.submitted = 0
        threading.Thread(target=self._work, name="reducer", daemon=True).start()

    def submit(self, flat: torch.Tensor) -> None:
        self.queue.put(flat)
        self.submitted += 1

    def wait(self) -> None:
        """Return when every tensor submitted is summed up; raises what the thread met."""
        for _ in range(self.submitted):
            if error := self.done.get():
                raise error
        self.submitted = 0

    def _work(self) -> None:
        while True:
            flat = self.queue.get()
            try:
                self._meet()
                # To numpy and MPI a half is a 16-bit integer; `operation` knows better.
                words = flat.view(torch.int16) if flat.itemsize == 2 else flat
                for piece in torch.split(words, REDUCED_AT_ONCE // flat.itemsize):
                    self.comm.Allreduce(MPI.IN_PLACE, piece.numpy(), self.operation)
            except Exception as error:  # noqa: BLE001 - for the thread that waits
                self.done.put(error)
            else:
                self.done.put(None)

    def _meet(self) -> None:
        """Wait asleep until every rank is here."""
        met = self.comm.Ibarrier()
        while not met.Test():
            time.sleep(NAP)
