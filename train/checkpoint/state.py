"""What a checkpoint is made of, put together from all ranks and taken apart again.

Parameters and what the optimizer remembers of them go by the names of the parameters, whole, wherever they
are sharded. So a checkpoint fits another number of ranks, and another way of splitting the work.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ..errors import TrainError

WHOLE = StateDictOptions(full_state_dict=True)


def consolidated(
    model: nn.Module, optimizer: torch.optim.Optimizer, writers: Sequence[int]
) -> dict[str, Any]:
    """Return `model` and `optimizer` whole, on the ranks `writers`; every rank must call it.

    `model` may be wrapped by DistributedDataParallel or sharded by fully_shard, and `optimizer` may be a
    ZeroRedundancyOptimizer.
    """
    # Known by its method: importing torch.distributed.optim takes a tenth of a second, and here nothing else.
    if not hasattr(optimizer, "consolidate_state_dict"):
        return _whole(model, optimizer)
    state: dict[str, Any] = {}
    for writer in writers:  # it consolidates on one rank at a time, and forgets it at the next
        optimizer.consolidate_state_dict(to=writer)
        if writer == dist.get_rank():
            state = _whole(model, optimizer)
    return state


def _whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer, options=WHOLE)
    return {"model": model_state, "optimizer": optimizer_state}


def restore(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Put what `consolidated` returned back; every rank must call it, with the same `state`.

    The optimizer may keep tensors of `state`. Raises TrainError if it does not fit.
    """
    try:
        set_model_state_dict(model, state["model"], options=WHOLE)
        if hasattr(optimizer, "consolidate_state_dict"):
            optimizer.load_state_dict(_by_number(model, optimizer, state["optimizer"]))
        else:
            set_optimizer_state_dict(model, optimizer, state["optimizer"], options=WHOLE)
    except (KeyError, RuntimeError, ValueError) as error:
        raise TrainError(f"the checkpoint is of another network or optimizer: {error}") from error


def _by_number(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return the optimizer's `state` by parameters' numbers, as ZeroRedundancyOptimizer wants it."""
    names = {parameter: name.removeprefix("module.") for name, parameter in model.named_parameters()}
    ordered = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    number = {name: place for place, name in enumerate(ordered)}
    return {
        "state": {number[name]: value for name, value in state["state"].items()},
        "param_groups": [
            {**group, "params": [number[name] for name in group["params"]]} for group in state["param_groups"]
        ],
    }


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the state of every random number generator of this rank."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Continue with `state`, which random_state returned."""
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
