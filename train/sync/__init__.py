"""Data-parallel strategies, a module each: how the ranks train one model together."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..job.failure import TrainError
from ..job.group import Group
from .ddp import Ddp
from .replicated import Unsynchronised

STRATEGIES = ("ddp", "none")


def make_strategy(
    name: str, model: nn.Module, group: Group, optimizer: type[Optimizer], **options: Any
) -> Unsynchronised:
    """Make `model` and an `optimizer` of its parameters, with `options`, trainable by all ranks of `group`.

    `name` is one of STRATEGIES. The strategy moves the model to the group's device, and "ddp" gives every
    rank the weights of rank 0. A collective call.
    """
    match name:
        case "ddp":
            return Ddp(model, group, optimizer, options)
        case "none":
            return Unsynchronised(model, group, optimizer, options)
        case _:
            raise TrainError(f"--sync must be one of {' '.join(STRATEGIES)}, got {name}")
