"""What DistributedDataParallel does, in the open, over mpi4py: buckets, hooks, and a thread that adds up.

`--compress fp16` or `bf16` halves what is on the wire. Sums are then rounded to the half type at each of the
log2(n) or more steps, so the result depends a little on the number of ranks. It pays where the network is
slow; on one machine the conversion costs more than it saves (docs/train.md has figures).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..group import Group
from ..mpi import MPI, broadcast_weights, communicator
from ..mpi_backend.half import callback
from .alone import Alone
from .bucket import fill_buckets
from .reducer import Reducer

BUCKET_BYTES = 4 << 20
WIRE = {"fp16": torch.float16, "bf16": torch.bfloat16}


class MpiBuckets(Alone):
    """See protocol.py for the methods.

    Autograd calls a hook for each parameter whose gradient is there. The gradient goes into its bucket, and a
    full bucket to the reducer, unless an earlier one is not full yet: every rank must submit the buckets in
    the same order, and backward may not reach the parameters in the same order everywhere.
    """

    def __init__(
        self,
        network: nn.Module,
        group: Group,
        optimizer: type[Optimizer],
        options: dict[str, Any],
        compress: str = "none",
    ) -> None:
        super().__init__(network, group, optimizer, options)
        comm = communicator(group.ranks).Dup()  # ours alone: another thread uses it
        broadcast_weights(network, comm)
        wire = WIRE.get(compress)
        trained = [each for each in network.parameters() if each.requires_grad]
        self.buckets = fill_buckets(trained, BUCKET_BYTES, wire)
        self.reducer = Reducer(comm, callback("SUM", wire) if wire else MPI.SUM)
        self.scale = 1 / comm.size  # before the sum, so that halves cannot overflow by it
        self.next = 0
        self.in_sync = True
        for bucket in self.buckets:
            for index, parameter in enumerate(bucket.parameters):
                hook = self._hook(bucket.put, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def _hook(self, put: Callable[[int, float], bool], index: int) -> Callable[[torch.Tensor], None]:
        def gradient_is_there(_parameter: torch.Tensor) -> None:
            if self.in_sync and put(index, self.scale):
                self._submit_full_ones()

        return gradient_is_there

    def _submit_full_ones(self) -> None:
        while self.next < len(self.buckets) and not self.buckets[self.next].missing:
            self.reducer.submit(self.buckets[self.next].flat)
            self.next += 1

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.in_sync = False
        try:
            yield
        finally:
            self.in_sync = True

    def finish(self) -> None:
        for bucket in self.buckets[self.next :]:
            for index in sorted(bucket.missing):
                bucket.put(index, self.scale)
        self._submit_full_ones()
        self.reducer.wait()
        for bucket in self.buckets:
            bucket.take_back()
        self.next = 0
