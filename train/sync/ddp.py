"""DistributedDataParallel: torch's own strategy, and the one to begin with.

It all-reduces gradients in buckets, each as soon as the backward pass has filled it, so that communication
and computation overlap: Li et al., PyTorch Distributed, 2020 (arXiv:2006.15704).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..job.group import Group
from .replicated import Unsynchronised, broadcast_from_rank_0


def synchronise(model: nn.Module, job: Group, **options: Any) -> DistributedDataParallel:
    """Return `model` on the job's device, with rank 0's weights and with gradients averaged over the ranks.

    `options` are those of DistributedDataParallel. Make the optimizer from the parameters of the result. A
    collective call.
    """
    model = model.to(job.device)
    return DistributedDataParallel(model, **{"gradient_as_bucket_view": True, **options})


class Ddp(Unsynchronised):
    """`--sync ddp`."""

    def __init__(
        self, model: nn.Module, group: Group, optimizer: type[Optimizer], options: dict[str, Any]
    ) -> None:
        super().__init__(model, group, optimizer, options)
        self._ddp = self.model = synchronise(self.replica, group)

    def no_sync(self) -> AbstractContextManager[None]:
        return self._ddp.no_sync()

    def share_buffers(self) -> None:
        broadcast_from_rank_0(self.replica.buffers(), self.group.device)
