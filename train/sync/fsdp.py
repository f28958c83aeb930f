"""Fully sharded: weights, gradients and optimizer state are split among the ranks (ZeRO stage 3, FSDP2).

The layers of a unit are gathered when its forward or backward pass needs them, and freed afterwards, so that
a model trains that is larger than one device: Zhao et al., PyTorch FSDP, 2023 (arXiv:2304.11277).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from ..job.failure import TrainError
from ..job.group import Group
from .replicated import broadcast_from_rank_0

NEED_WHOLE_WEIGHTS = {"Adafactor", "Rprop"}
"""Optimizers of torch 2.13 that fail with sharded weights, in the middle of their first step."""


class Fsdp:
    """`--sync fsdp`; strategy.py describes the methods.

    The model comes as it was built, usually in host memory, whole on every rank. Its units are moved to the
    device one after the other and sharded there, so that the device never holds the whole model.
    """

    def __init__(
        self, model: nn.Module, group: Group, optimizer: type[Optimizer], options: dict[str, Any]
    ) -> None:
        # In earlier versions Gloo and torch's own MPI have no reduce_scatter, and fully_shard of torch 2.6
        # asks even a CPU for a stream's event.
        if group.device.type == "cpu" and _older_than(2, 8):
            raise TrainError(
                f"--sync fsdp on a CPU needs torch 2.8 or later, this is {torch.__version__}\n"
                "use --sync zero or ddp"
            )
        if optimizer.__name__ in NEED_WHOLE_WEIGHTS:
            raise TrainError(
                f"--sync fsdp cannot train with {optimizer.__name__}, which needs whole weights\n"
                "use AdamW, or --sync zero"
            )
        self.group = group
        broadcast_from_rank_0([*model.parameters(), *model.buffers()], group.device)
        mesh = group.mesh()
        for unit in units(model):
            fully_shard(unit, mesh=mesh)
        self.sharded = fully_shard(model, mesh=mesh)
        self.model = model  # the same object, now of both classes
        self.optimizer = optimizer(self.model.parameters(), **options)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.sharded.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.sharded.set_requires_gradient_sync(True)

    def clip(self, max_norm: float) -> float:
        """Clip by the norm over all shards: full_tensor combines the parts that the ranks hold."""
        parameters = list(self.model.parameters())
        norm = get_total_norm([each.grad for each in parameters if each.grad is not None])
        whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
        clip_grads_with_norm_(parameters, max_norm, whole)
        return float(whole)

    def share_buffers(self) -> None:
        broadcast_from_rank_0(self.model.buffers(), self.group.device)


def units(model: nn.Module) -> list[nn.Module]:
    """Return the modules to gather and free as a whole: the children of `model`, and those of its lists.

    What is left belongs to `model` itself and is gathered first. Weights that two children share (an
    embedding and the output layer of a language model) must be left to it: in units of their own they would
    be sharded twice, and trained apart from then on.
    """
    candidates = list(dict.fromkeys(_children_with_forward(model)))
    holders = Counter(parameter for each in candidates for parameter in each.parameters())
    holders.update(model.parameters(recurse=False))
    return [
        each
        for each in candidates
        if next(each.parameters(), None) is not None
        and all(holders[parameter] == 1 for parameter in each.parameters())
    ]


def _children_with_forward(module: nn.Module) -> Iterator[nn.Module]:
    """Go into children such as ModuleList, which are never called: only a call gathers a unit."""
    for child in module.children():
        if type(child).forward is nn.Module.forward:
            yield from _children_with_forward(child)
        else:
            yield child


def _older_than(*version: int) -> bool:
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) < version
