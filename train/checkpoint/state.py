"""The contents of a checkpoint: collected from all ranks, and distributed to them again.

Parameters and their optimizer state are stored by parameter name, and complete, however they were sharded.
So a checkpoint fits any number of ranks and any strategy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

from ..job.failure import TrainError

WHOLE = StateDictOptions(full_state_dict=True)


def consolidated(
    model: nn.Module, optimizer: torch.optim.Optimizer, writers: Sequence[int]
) -> dict[str, Any]:
    """Return the complete state of `model` and `optimizer` on the ranks `writers`, and {} on the others.

    Every rank must call it. `model` may be wrapped by DistributedDataParallel or sharded by fully_shard, and
    `optimizer` may be a ZeroRedundancyOptimizer. Sharded tensors are gathered one at a time, and collected in
    the writers' host memory: no device holds more than one whole tensor.
    """
    # Recognised by its method: importing torch.distributed.optim takes a tenth of a second.
    if not hasattr(optimizer, "consolidate_state_dict"):
        return _gathered(model, optimizer, keep=not dist.is_initialized() or dist.get_rank() in writers)
    state: dict[str, Any] = {}
    for writer in writers:  # it consolidates on one rank at a time, and drops the result at the next call
        optimizer.consolidate_state_dict(to=writer)
        if writer == dist.get_rank():
            state = _gathered(model, optimizer, keep=True)
    return state


def _gathered(model: nn.Module, optimizer: torch.optim.Optimizer, *, keep: bool) -> dict[str, Any]:
    model_state: Mapping[str, Any]
    optimizer_state: Mapping[str, Any]
    if optimizer.state_dict()["state"]:
        model_state, optimizer_state = get_state_dict(model, optimizer)
    else:
        # Before its first step, and SGD's without momentum always. get_state_dict would take a step, with
        # gradients of zero: Adam's counts, and in ZeRO's a rank waits for the others.
        model_state, optimizer_state = get_model_state_dict(model), _without_state(model, optimizer)
    gathered = {"model": _whole(model_state, keep=keep), "optimizer": _whole(optimizer_state, keep=keep)}
    return gathered if keep else {}


def _without_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the options of an optimizer that has no state, with the names of parameters."""
    names = _names(model)
    groups = [
        {**group, "params": [names[parameter] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    return {"state": {}, "param_groups": groups}


def _names(model: nn.Module) -> dict[nn.Parameter, str]:
    return {parameter: name.removeprefix("module.") for name, parameter in model.named_parameters()}


def _whole(tree: Any, *, keep: bool) -> Any:
    """Return `tree` with every sharded tensor gathered, on the CPU; with None for tensors if not `keep`."""
    if isinstance(tree, Mapping):
        return {name: _whole(value, keep=keep) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_whole(value, keep=keep) for value in tree]
    if isinstance(tree, DTensor):
        tree = tree.full_tensor()  # a collective
    if isinstance(tree, torch.Tensor):
        return tree.detach().cpu() if keep else None
    return tree


def refuse_another_network(model: nn.Module, of_checkpoint: Mapping[str, Any]) -> None:
    """Raise TrainError if the weights of a checkpoint do not fit `model`; no collective, changes nothing."""
    here, there = _shapes(get_model_state_dict(model)), _shapes(of_checkpoint)
    for name in [*here, *there]:
        if here.get(name) != there.get(name):
            sizes = f"{there.get(name, 'missing')} there and {here.get(name, 'missing')} here"
            raise TrainError(f"the checkpoint is of another network: {name} is {sizes}")


def _shapes(state: Mapping[str, Any]) -> dict[str, list[int]]:
    return {name: list(value.shape) for name, value in state.items() if isinstance(value, torch.Tensor)}


def restore(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Put the result of `consolidated` back; every rank must call it, with the same `state`.

    Model and optimizer get copies, because the tensors of `state` may be mapped from a file that is removed
    later. Cycles that torch's functions leave refer to `state` until the garbage collector runs. Raises
    TrainError if it does not fit.
    """
    state = _rebuilt({name: state[name] for name in ("model", "optimizer")})
    try:
        set_model_state_dict(model, state["model"], options=WHOLE)
        if hasattr(optimizer, "consolidate_state_dict") or not state["optimizer"]["state"]:
            optimizer.load_state_dict(_by_number(model, optimizer, state["optimizer"]))
        else:
            set_optimizer_state_dict(model, optimizer, state["optimizer"], options=WHOLE)
    except (KeyError, RuntimeError, ValueError) as error:
        raise TrainError(f"the checkpoint is of another network or optimizer: {error}") from error
    _copy_tensors(getattr(optimizer, "optim", optimizer))


def _rebuilt(tree: Any) -> Any:
    """Return `tree` in new dicts: torch's functions replace tensors in the dicts that they are given."""
    if isinstance(tree, Mapping):
        return {name: _rebuilt(value) for name, value in tree.items()}
    return tree


def _copy_tensors(optimizer: torch.optim.Optimizer) -> None:
    """Give the optimizer copies of the tensors: load_state_dict keeps the tensors that it is given."""
    for of_parameter in optimizer.state.values():
        for name, value in of_parameter.items():
            if isinstance(value, torch.Tensor) and not isinstance(value, DTensor):
                of_parameter[name] = value.clone()


def _by_number(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return the optimizer's `state` by numbers of parameters, as its load_state_dict needs it."""
    names = _names(model)
    ordered = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    number = {name: place for place, name in enumerate(ordered)}
    return {
        "state": {number[name]: value for name, value in state["state"].items()},
        "param_groups": [
            {**group, "params": [number[name] for name in group["params"]]} for group in state["param_groups"]
        ],
    }
