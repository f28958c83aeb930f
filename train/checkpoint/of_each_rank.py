"""A part of the training that differs from rank to rank: a checkpoint has the state of every rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..job.failure import TrainError
from ..job.group import Job

AT_MOST = 64 << 20
"""Bytes of a rank's state as JSON."""
TYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}


class OfEachRank:
    """Saves the states of all ranks' `part` together; each rank loads its own.

    Loaded at another number of ranks, none is a rank's own: `other` gets them all, in rank order. Both
    methods are collectives.
    """

    def __init__(self, group: Job, part: Any, *, other: Callable[[list[Any]], None]) -> None:
        self.group, self.part, self.other = group, part, other

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all ranks. Raises TrainError for data that a checkpoint cannot hold."""
        mine = encoded(self.part.state_dict())
        ranks = []
        for rank, sent in enumerate(self.group.all_gather(mine, at_most=AT_MOST)):
            try:
                ranks.append(decoded(sent))
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                where = f"rank {rank} ({self.group.hosts[rank]})"
                raise TrainError(f"{where} sends a state that cannot be read: {error}") from error
        return {"ranks": ranks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        ranks = state["ranks"]
        if len(ranks) == self.group.world_size:
            self.part.load_state_dict(ranks[self.group.rank])
        else:
            self.other(ranks)


def encoded(value: Any) -> Any:
    """Return plain data as JSON has it: what JSON lacks is an object of one name, {"tuple": [1, 2]}."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or type(value) in {bool, int, float, str}:
        return value
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().contiguous()
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind in TYPES:
            data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes().hex()
            return {"tensor": [kind, [*tensor.shape], data]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, Mapping):
        return {"dict": [[encoded(key), encoded(each)] for key, each in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [encoded(each) for each in value]
        return items if isinstance(value, list) else {"tuple": items}
    raise TrainError(f"a checkpoint cannot hold {type(value).__name__}: {str(value)[:60]}")


def decoded(value: Any) -> Any:
    """Return what `encoded` was given. Raises KeyError, TypeError or ValueError for anything else."""
    if isinstance(value, list):
        return [decoded(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return KINDS[kind](content)


def _tensor(content: Any) -> torch.Tensor:
    name, shape, data = content
    if not data:
        return torch.empty(shape, dtype=TYPES[name])
    return torch.frombuffer(bytearray.fromhex(data), dtype=TYPES[name]).reshape(shape)


KINDS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "bytes": bytes.fromhex,
    "tuple": lambda content: tuple(decoded(each) for each in content),
    "dict": lambda content: {decoded(key): decoded(each) for key, each in content},
    "tensor": _tensor,
}
