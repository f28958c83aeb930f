"""`--sync none`, and what rank 0 sends to all."""

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

    Every method but `no_sync` is a collective of a strategy that communicates: all ranks call it, in the same
    order.
    """

    model: nn.Module
    """The module to call for the forward pass, in training and in evaluation."""

    def __init__(
        self, model: nn.Module, group: Group, optimizer: type[Optimizer], options: dict[str, Any]
    ) -> None:
        self.group = group
        self.replica = model.to(group.device)
        self.model = self.replica
        self.optimizer = optimizer(self.replica.parameters(), **options)

    def no_sync(self) -> AbstractContextManager[None]:
        """Let backward passes in the block add to this rank's own gradients, without communication."""
        return nullcontext()

    def clip(self, max_norm: float) -> float:
        """Scale the gradients down to a total 2-norm of `max_norm`; returns the norm before."""
        return float(clip_grad_norm_(self.replica.parameters(), max_norm))

    def share_buffers(self) -> None:
        """Give every rank the buffers of rank 0, such as the running statistics of a BatchNorm.

        Each rank's forward passes update its own. Call this before an evaluation and before a checkpoint.
        """


@torch.no_grad()
def broadcast_from_rank_0(tensors: Iterable[torch.Tensor], device: torch.device) -> None:
    """Overwrite each of `tensors`, wherever it is, with rank 0's; they travel by way of `device`."""
    for tensor in tensors:
        moved = tensor.detach().to(device).contiguous()
        dist.broadcast(moved, src=0)
        tensor.copy_(moved)
