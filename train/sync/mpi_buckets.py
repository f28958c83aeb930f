"""What DistributedDataParallel does, in Python and over mpi4py: buckets, hooks, and a thread that sums.

`--compress fp16` or `bf16` halves the bytes that travel. Sums are then rounded to the half type at each of
the log2(n) or more steps, so the result depends a little on the number of ranks n. It pays where the network
is slow; on one machine the conversion costs more than it saves (docs/train.md has figures).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..job.failure import TrainError
from ..job.group import Group
from ..job.mpi_world import communicator
from .bucket import fill_buckets
from .mpi_tensors import broadcast
from .reducer import Reducer
from .replicated import Replicated

BUCKET_BYTES = 4 << 20
WIRE = {"fp16": torch.float16, "bf16": torch.bfloat16}


class MpiBuckets(Replicated):
    """`--sync mpi4py`; strategy.py describes the methods.

    Autograd calls a hook for each parameter as soon as its gradient is computed. The hook copies the gradient
    into its bucket and submits full buckets to the reducer, always in the order of the list: every rank must
    submit them in the same order, and backward may not reach the parameters in the same order everywhere.
    """

    def __init__(
        self,
        model: nn.Module,
        group: Group,
        optimizer: type[Optimizer],
        options: dict[str, Any],
        compress: str = "none",
    ) -> None:
        super().__init__(model, group, optimizer, options)
        comm = communicator(group.ranks).Dup()  # ours alone: another thread uses it
        for tensor in model.state_dict().values():
            broadcast(comm, tensor)
        trained = [each for each in model.parameters() if each.requires_grad]
        self.compress = compress
        self.buckets = fill_buckets(trained, BUCKET_BYTES, WIRE.get(compress))
        self.reducer = Reducer(comm)
        self.scale = 1 / comm.size  # before the sum, so that a sum of halves does not overflow
        self.next = 0
        self.in_sync = True
        for bucket in self.buckets:
            for index, parameter in enumerate(bucket.parameters):
                hook = self._hook(bucket.put, index)
                parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def _hook(self, put: Callable[[int, float], bool], index: int) -> Callable[[torch.Tensor], None]:
        def copy_into_bucket(_parameter: torch.Tensor) -> None:
            if self.in_sync and put(index, self.scale):
                self._submit_full_buckets()

        return copy_into_bucket

    def _submit_full_buckets(self) -> None:
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
        self._submit_full_buckets()
        self.reducer.wait()
        self.next = 0
        for bucket in self.buckets:
            if self.compress != "none" and not torch.isfinite(bucket.flat).all():  # on every rank, or on none
                raise TrainError(_overflow(self.compress))
            bucket.hand_out()


def _overflow(compress: str) -> str:
    largest = torch.finfo(WIRE[compress]).max
    return (
        f"--compress {compress}: a gradient is not finite, or above {largest:g}, the largest {compress}\n"
        "use --compress bf16 or none; if that overflows too, the training diverges: lower --lr"
    )
