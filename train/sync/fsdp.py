"""Fully sharded: weights, gradients and the optimizer's state are cut among the ranks (ZeRO stage 3, FSDP2).

A layer is put together when it is needed and dropped afterwards, so that a network trains which is larger
than one device: Zhao et al., PyTorch FSDP, 2023 (arXiv:2304.11277).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from ..errors import TrainError
from ..group import Group


class Fsdp:
    """See protocol.py for the methods. Each child of the network that has weights is a unit of its own."""

    def __init__(
        self, network: nn.Module, group: Group, optimizer: type[Optimizer], options: dict[str, Any]
    ) -> None:
        # Before, Gloo and torch's own MPI have no reduce_scatter, and fully_shard of torch 2.6 asks even a
        # CPU for a stream's event.
        if group.device.type == "cpu" and _older_than(2, 8):
            raise TrainError(
                f"--sync fsdp on a CPU needs torch 2.8 or later, this is {torch.__version__}\n"
                "use --sync zero or ddp"
            )
        mesh = group.mesh()
        for child in network.children():
            if next(child.parameters(), None) is not None:
                fully_shard(child, mesh=mesh)
        self.sharded = fully_shard(network, mesh=mesh)
        self.model = network  # the same object, which is both
        self.optimizer = optimizer(self.model.parameters(), **options)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.sharded.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.sharded.set_requires_gradient_sync(True)

    def finish(self) -> None:
        pass  # the backward pass ends with the last gradient reduced

    def clip(self, max_norm: float) -> float:
        """Clip by the norm over all shards; each rank knows only its own until full_tensor adds them up."""
        parameters = list(self.model.parameters())
        norm = get_total_norm([each.grad for each in parameters if each.grad is not None])
        whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
        clip_grads_with_norm_(parameters, max_norm, whole)
        return float(whole)


def _older_than(*version: int) -> bool:
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) < version
