"""The contents of a checkpoint: what is taken of the parts of a training, and given back to them.

A part is a model, an optimizer, anything else with `state_dict` and `load_state_dict`, or plain data.
Parameters and their optimizer state have the names of parameters, and sharded tensors the shape of the whole,
however a model is wrapped and split. So a checkpoint fits any number of ranks and any strategy.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..job.failure import TrainError
from .parts import Box, Stored, box_of, leaves, mapped, sharded_like, stored

COMPILED = "_orig_mod"
"""What torch.compile calls the module that it wraps."""

# What torch.load(weights_only=True) reads. By type, not isinstance: np.float64 is a float and cannot be read.
LEAVES = frozenset(
    {type(None), bool, int, float, complex, str, bytes, bytearray, torch.Size, torch.dtype, torch.device}
)
CONTAINERS = frozenset({dict, OrderedDict, Counter, list, tuple, set})
TENSORS = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, DTensor})


def taken(states: Mapping[str, Any], writers: Sequence[int]) -> dict[str, Any]:
    """Return the state of each of `states`, whose tensors are the training's own, and may be sharded.

    Every rank must call it. On ranks other than `writers` the state of a ZeroRedundancyOptimizer is missing.
    Raises TrainError if a checkpoint cannot hold it.
    """
    tree = {name: _state_of(value, states, writers) for name, value in states.items()}
    for name, state in tree.items():
        refuse_unreadable(state, f"{name!r}")
    return tree


def whole(tree: Any, *, keep: bool) -> Any:
    """Return `tree` with every sharded tensor gathered, on the CPU; with None for tensors if not `keep`.

    A collective. Tensors are gathered one at a time: no device holds more than one whole tensor.
    """

    def gathered(_: str, leaf: Any) -> Any:
        if isinstance(leaf, DTensor):
            leaf = leaf.full_tensor()
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().cpu() if keep else None
        return leaf

    return mapped(tree, gathered)


def _state_of(value: Any, states: Mapping[str, Any], writers: Sequence[int]) -> Any:
    if isinstance(value, nn.Module):
        return {plain_name(name, value): leaf for name, leaf in value.state_dict().items()}
    if isinstance(value, Optimizer):
        names = parameter_names(states, value)
        state = _consolidated(value, writers)
        return (
            state
            if names is None or not state
            else _by_name(state, [names[each] for each in of_groups(value)])
        )
    return value.state_dict() if is_stateful(value) else value


def weights_of(states: Mapping[str, Any]) -> Iterator[nn.Parameter]:
    """Yield the parameters of all models among `states`."""
    for value in states.values():
        if isinstance(value, nn.Module):
            yield from value.parameters()


def is_stateful(value: Any) -> bool:
    """Whether a part is saved by state_dict and loaded by load_state_dict."""
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _consolidated(optimizer: Optimizer, writers: Sequence[int]) -> dict[str, Any]:
    """Return the state of an optimizer; of a ZeroRedundancyOptimizer {} on ranks other than the writers."""
    # Recognised by its method: importing torch.distributed.optim takes a tenth of a second.
    if not hasattr(optimizer, "consolidate_state_dict"):
        return optimizer.state_dict()
    state: dict[str, Any] = {}
    for writer in writers:  # it consolidates on one rank at a time, and drops the result at the next call
        optimizer.consolidate_state_dict(to=writer)
        if writer == dist.get_rank():
            state = optimizer.state_dict()
    return state


def _by_name(state: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    groups = [
        {**group, "params": [names[number] for number in group["params"]]} for group in state["param_groups"]
    ]
    return {
        **state,
        "state": {names[number]: value for number, value in state["state"].items()},
        "param_groups": groups,
    }


def refuse_other(states: Mapping[str, Any], tree: Mapping[str, Any]) -> None:
    """Raise TrainError if what a checkpoint holds does not fit `states`; changes nothing, no collective."""
    for name, value in states.items():
        if name not in tree:
            raise TrainError(f"the checkpoint has no {name!r}: it has {', '.join(map(repr, tree))}")
        if isinstance(value, nn.Module):
            here = _shapes({plain_name(key, value): leaf for key, leaf in value.state_dict().items()})
            there = _shapes(tree[name])
            for key in [*here, *there]:
                if here.get(key) != there.get(key):
                    sizes = f"{there.get(key, 'missing')} there and {here.get(key, 'missing')} here"
                    raise TrainError(f"the checkpoint is of another network: {key} is {sizes}")
        elif isinstance(value, Optimizer):
            _numbered(value, states, tree[name])


def _shapes(state: Any) -> dict[str, list[int]]:
    if not isinstance(state, Mapping):
        raise TrainError("the checkpoint is of another program: what it has for a model is none")
    return {
        name: list(value.shape) for name, value in state.items() if isinstance(value, torch.Tensor | Stored)
    }


def put_back(states: MutableMapping[str, Any], tree: Mapping[str, Any]) -> None:
    """Give each of `states` what a checkpoint has of it; the tensors of `tree` are `Stored`.

    Plain data in `states` is replaced. Raises TrainError if it does not fit, before anything is changed where
    that can be known.
    """
    refuse_other(states, tree)
    for name, value in states.items():
        try:
            if isinstance(value, nn.Module):
                _load_model(value, tree[name])
            elif isinstance(value, Optimizer):
                value.load_state_dict(_for_optimizer(value, states, tree[name]))
            elif is_stateful(value):
                value.load_state_dict(_copied(tree[name]))
            else:
                states[name] = _copied(tree[name])
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise TrainError(
                f"the checkpoint is of another program: {name!r} cannot take its state: {error}"
            ) from error


def wanted(states: Mapping[str, Any], tree: Mapping[str, Any]) -> Iterator[tuple[Stored, Box]]:
    """Yield the tensors of a checkpoint that fits, with the part of each that put_back reads on this rank."""
    for name, value in states.items():
        if isinstance(value, nn.Module):
            for key, leaf in value.state_dict().items():
                there = tree[name][plain_name(key, value)]
                if isinstance(there, Stored):
                    yield there, box_of(leaf)
            continue
        state = tree[name]
        if isinstance(value, Optimizer):
            numbered = _numbered(value, states, state)
            for number, parameter in enumerate(of_groups(value)):
                for there in numbered["state"].get(number, {}).values():
                    if isinstance(there, Stored):
                        same = there.shape == list(parameter.shape)
                        yield there, box_of(parameter) if same else Box.all_of(there.shape)
            state = numbered["param_groups"]
        for there in leaves(state):
            if isinstance(there, Stored):
                yield there, Box.all_of(there.shape)


def _load_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load the parts that this rank holds; load_state_dict copies them, so they may be mapped from a file."""
    live = model.state_dict()
    loaded = {}
    for name, leaf in live.items():
        there = state[plain_name(name, model)]
        loaded[name] = sharded_like(leaf, there) if isinstance(there, Stored) else there
    model.load_state_dict(loaded)


def _for_optimizer(
    optimizer: Optimizer, states: Mapping[str, Any], state: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an optimizer's state, sharded like its parameters, in copies: load_state_dict keeps them."""
    numbered = _numbered(optimizer, states, state)
    numbered["param_groups"] = _copied(numbered["param_groups"])
    for number, parameter in enumerate(of_groups(optimizer)):
        of_parameter = numbered["state"].get(number)
        if of_parameter is not None:
            numbered["state"][number] = {
                key: _like(parameter, value) if isinstance(value, Stored) else _copied(value)
                for key, value in of_parameter.items()
            }
    return numbered


def _like(parameter: torch.Tensor, there: Stored) -> torch.Tensor:
    if isinstance(parameter, DTensor) and there.shape == list(parameter.shape):
        return sharded_like(parameter, there, copy=True)
    return there.whole()


def _numbered(optimizer: Optimizer, states: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the optimizer's `state` by numbers of parameters, as its load_state_dict needs it."""
    names = parameter_names(states, optimizer)
    if names is None:
        return {**state, "state": dict(state["state"])}
    ordered = [names[parameter] for parameter in of_groups(optimizer)]
    number = {name: place for place, name in enumerate(ordered)}
    saved = {frozenset(group["params"]): group for group in state["param_groups"]}
    groups = []
    for group in optimizer.param_groups:
        mine = [names[parameter] for parameter in group["params"]]
        if frozenset(mine) not in saved:
            raise TrainError(
                "the checkpoint is of another optimizer: it has no group of the parameters "
                f"{', '.join(mine[:3])}{' ...' if len(mine) > 3 else ''}"
            )
        groups.append({**saved[frozenset(mine)], "params": [number[name] for name in mine]})
    by_number = {number[name]: value for name, value in state["state"].items() if name in number}
    return {**state, "state": by_number, "param_groups": groups}


def _copied(tree: Any) -> Any:
    return mapped(tree, lambda _, leaf: leaf.whole() if isinstance(leaf, Stored) else leaf)


def as_stored(tree: Any) -> Any:
    """Return the tree of a checkpoint that is one file, as put_back needs it."""
    return mapped(tree, lambda _, leaf: stored(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def plain_name(name: str, model: nn.Module) -> str:
    """Return the name that a parameter or buffer has in `model` without torch.compile and DDP.

    torch.compile may wrap a whole model or modules inside it, and DistributedDataParallel may be inside or
    outside of it.
    """
    parts = [part for part in name.split(".") if part != COMPILED]
    if isinstance(getattr(model, COMPILED, model), DistributedDataParallel):
        parts = parts[1:]  # it calls the model module
    return ".".join(parts)


def parameter_names(states: Mapping[str, Any], optimizer: Optimizer) -> dict[nn.Parameter, str] | None:
    """Return the names of the optimizer's parameters, by the models among `states`.

    Parameters of several models have the names of these before their own. None if a parameter is of no model.
    """
    wanted = list(of_groups(optimizer))
    models = {name: value for name, value in states.items() if isinstance(value, nn.Module)}
    by_model = {name: _names(model) for name, model in models.items()}
    for names in by_model.values():
        if all(parameter in names for parameter in wanted):
            return {parameter: names[parameter] for parameter in wanted}
    every = {
        parameter: f"{model}.{name}" for model, names in by_model.items() for parameter, name in names.items()
    }
    return every if all(parameter in every for parameter in wanted) else None


def of_groups(optimizer: Optimizer) -> Iterable[nn.Parameter]:
    """Return the parameters of an optimizer, in the order of their numbers in its state_dict."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _names(model: nn.Module) -> dict[nn.Parameter, str]:
    return {parameter: plain_name(name, model) for name, parameter in model.named_parameters()}


def refuse_unreadable(value: Any, name: str) -> None:
    """Raise TrainError if a part of `value`, which is called `name`, could be saved but not read back."""
    kind = type(value)
    if kind in LEAVES or kind in TENSORS or kind in torch.serialization.get_safe_globals():
        return
    if kind not in CONTAINERS:
        raise TrainError(
            f"a checkpoint cannot hold {name}, a {kind.__module__}.{kind.__qualname__}: only numbers, text, "
            "lists, dicts and tensors are read back without running code of the file\n"
            "convert it, as with float(), list(), str(), vars() or torch.from_numpy()"
        )
    if isinstance(value, Mapping):
        for key, each in value.items():
            refuse_unreadable(key, f"the key {key!r} of {name}")
            refuse_unreadable(each, f"{name}[{key!r}]")
        return
    for number, each in enumerate(value):
        refuse_unreadable(each, f"{name}[{number}]")
