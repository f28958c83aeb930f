"""One model on all ranks: torch's DistributedDataParallel, and what rank 0 sends to all.

DistributedDataParallel all-reduces gradients in buckets, each as soon as the backward pass has filled it, so
that communication and computation overlap: Li et al., PyTorch Distributed, 2020 (arXiv:2006.15704).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .job.group import Group

CHOICES = ("ddp", "none")
"""The choices of `--sync`; with "none" each rank trains a model of its own: the baseline of benchmarks."""


def synchronise(model: nn.Module, job: Group, **options: Any) -> DistributedDataParallel:
    """Return `model` on the job's device, with rank 0's weights and with gradients averaged over the ranks.

    `options` are those of DistributedDataParallel. Make the optimizer from the parameters of the result. A
    collective call.
    """
    model = model.to(job.device)
    return DistributedDataParallel(model, **{"gradient_as_bucket_view": True, **options})


def placed(model: nn.Module, group: Group, sync: str) -> nn.Module:
    """Return `model` on the group's device, to be trained as one of CHOICES says."""
    return synchronise(model, group) if sync == "ddp" else model.to(group.device)


def share_buffers(model: nn.Module, group: Group) -> None:
    """Give every rank the buffers of rank 0, such as the running statistics of a BatchNorm, under DDP.

    Each rank's forward passes update its own; DDP gives rank 0's to all only in the next forward pass.
    """
    if isinstance(model, DistributedDataParallel):
        broadcast_from_rank_0(model.buffers(), group.device)


@torch.no_grad()
def broadcast_from_rank_0(tensors: Iterable[torch.Tensor], device: torch.device) -> None:
    """Overwrite each of `tensors`, wherever it is, with rank 0's; they travel by way of `device`."""
    for tensor in tensors:
        moved = tensor.detach().to(device).contiguous()
        dist.broadcast(moved, src=0)
        tensor.copy_(moved)
