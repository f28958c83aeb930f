"""The whole state of a model and its optimizer, collected from all ranks and put back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from muster.train.checkpoint.state import as_stored, put_back, taken, whole


def consolidated(model: nn.Module, optimizer: Optimizer, writers: Sequence[int]) -> dict[str, Any]:
    """Return the state on the ranks `writers`, and {} on the others; a collective."""
    keep = not dist.is_initialized() or dist.get_rank() in writers
    state: dict[str, Any] = whole(taken({"model": model, "optimizer": optimizer}, writers), keep=keep)
    return state if keep else {}


def restore(model: nn.Module, optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Put the result of `consolidated` back; every rank must call it, with the same `state`."""
    put_back({"model": model, "optimizer": optimizer}, as_stored(state))
