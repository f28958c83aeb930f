"""The base of strategies that keep the whole model on every rank, and `--sync none`, which does no more."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from ..job.group import Group


class Unsynchronised:
    """`--sync none`: every rank trains a model of its own, without communication; the baseline of benchmarks.

    strategy.py describes the methods.
    """

    def __init__(
        self, model: nn.Module, group: Group, optimizer: type[Optimizer], options: dict[str, Any]
    ) -> None:
        self.group = group
        self.replica = model.to(group.device)
        self.model = self.replica
        self.optimizer = optimizer(self.replica.parameters(), **options)

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def clip(self, max_norm: float) -> float:
        return float(clip_grad_norm_(self.replica.parameters(), max_norm))

    def share_buffers(self) -> None:
        pass


class Replicated(Unsynchronised):
    """The base of the strategies that average gradients over identical replicas."""

    def share_buffers(self) -> None:
        broadcast_from_rank_0(self.replica.buffers(), self.group.device)


@torch.no_grad()
def broadcast_from_rank_0(tensors: Iterable[torch.Tensor], device: torch.device) -> None:
    """Overwrite each of `tensors`, wherever it is, with rank 0's; they travel by way of `device`."""
    for tensor in tensors:
        moved = tensor.detach().to(device).contiguous()
        dist.broadcast(moved, src=0)
        tensor.copy_(moved)
