"""Which values a checkpoint may hold: those that are read back without running any code of the file."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ..job.failure import TrainError

# What torch.load(weights_only=True) reads. By type, not isinstance: np.float64 is a float and cannot be read.
LEAVES = frozenset(
    {type(None), bool, int, float, complex, str, bytes, bytearray, torch.Size, torch.dtype, torch.device}
)
CONTAINERS = frozenset({dict, OrderedDict, Counter, list, tuple, set})
TENSORS = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, DTensor})


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
