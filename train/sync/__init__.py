"""Data-parallel strategies, a module each: how the ranks train one model together."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..job.failure import TrainError
from ..job.group import Group
from .strategy import Strategy

STRATEGIES = ("ddp", "zero", "fsdp", "none")


def make_strategy(
    name: str, model: nn.Module, group: Group, optimizer: type[Optimizer], **options: Any
) -> Strategy:
    """Make `model` and an `optimizer` of its parameters, with `options`, trainable by all ranks of `group`.

    `name` is one of STRATEGIES. The strategy moves the model to the group's device, and all strategies but
    "none" give every rank the weights of rank 0.
    Raises TrainError where the strategy cannot work. A collective call.
    """
    made: Strategy = _class_of(name)(model, group, optimizer, options)
    return made


def _class_of(name: str) -> Any:
    """Import a strategy only when it is chosen: FSDP takes torch a second to load."""
    match name:
        case "ddp":
            from .ddp import Ddp as Chosen  # noqa: PLC0415
        case "zero":
            from .zero import Zero as Chosen  # noqa: PLC0415
        case "fsdp":
            from .fsdp import Fsdp as Chosen  # type: ignore[assignment]  # noqa: PLC0415
        case "none":
            from .replicated import Unsynchronised as Chosen  # type: ignore[assignment]  # noqa: PLC0415
        case _:
            raise TrainError(f"--sync must be one of {' '.join(STRATEGIES)}, got {name}")
    return Chosen
