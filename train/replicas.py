"""One model on all ranks: torch's DistributedDataParallel, and what rank 0 sends to all.

DistributedDataParallel all-reduces gradients in buckets, each as soon as the backward pass has filled it, so
that communication and computation overlap: Li et al., PyTorch Distributed, 2020 (arXiv:2006.15704).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .job.group import Job


def synchronise(model: nn.Module, job: Job, **options: Any) -> DistributedDataParallel:
    """Return `model` on the job's device, with rank 0's weights and with gradients averaged over the ranks.

    `options` are those of DistributedDataParallel. Make the optimizer from the parameters of the result. A
    collective call.
    """
    model = model.to(job.device)
    return DistributedDataParallel(model, **{"gradient_as_bucket_view": True, **options})


def share_buffers(model: nn.Module, group: Job) -> None:
    """Give every rank the buffers of rank 0, such as the running statistics of a BatchNorm, under DDP.

    Each rank's forward passes update its own; DDP gives rank 0's to all only in the next forward pass.
    """
    if isinstance(model, DistributedDataParallel):
        with torch.no_grad():
            for buffer in model.buffers():
                moved = buffer.to(group.device).contiguous()  # it may lie elsewhere
                dist.broadcast(moved, src=0)
                buffer.copy_(moved)
