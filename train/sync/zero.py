"""ZeRO stage 1: DistributedDataParallel, but each rank keeps the optimizer's state of a part of the weights.

A rank updates its part and broadcasts it. With Adam that saves, on each of n ranks, (1 - 1/n) of two numbers
per weight: Rajbhandari et al., ZeRO, 2020 (arXiv:1910.02054), section 5.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from ..job.failure import TrainError
from ..job.group import Group
from .ddp import Ddp

TYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32)
}
DESCRIBED = 64 << 20  # bytes of the description of a rank's state
MOST_PARTS = 16  # of the state of a weight; Adam's has 3
LARGEST = 4  # an optimizer's tensor has at most this many times the elements of its weight, and a few more


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an optimizer's state, of its `weight`-th weight: a tensor, or `value` without a `dtype`."""

    weight: int
    name: str
    dtype: str
    shape: list[int]
    value: float | None

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * TYPES[self.dtype].itemsize if self.dtype else 0


class Zero(Ddp):
    """`--sync zero`; strategy.py describes the methods. Every rank has all gradients, as with DDP."""

    def __init__(
        self, model: nn.Module, group: Group, optimizer: type[Optimizer], options: dict[str, Any]
    ) -> None:
        super().__init__(model, group, optimizer, options)
        self.optimizer: ZeroRedundancyOptimizer = ZeroOptimizer(
            group, self.replica.parameters(), optimizer_class=optimizer, **options
        )


class ZeroOptimizer(ZeroRedundancyOptimizer):
    """torch's, with a consolidation that sends tensors: torch's own unpickles what the other ranks send."""

    def __init__(self, group: Group, parameters: Iterator[nn.Parameter], **options: Any) -> None:
        self._ranks = group
        super().__init__(parameters, **options)

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collect the state of all ranks on rank `to`, for state_dict; every rank must call it."""
        torchs: Any = self  # whose methods torch does not declare
        torchs._sync_param_groups(self.param_groups, self.optim.param_groups)
        mine = self.optim.state_dict()["state"]
        described = self._ranks.all_gather([*_parts(mine)], list[Part], at_most=DESCRIBED)
        self._all_state_dicts = []
        for rank, parts in enumerate(described):
            groups = [group["params"] for group in torchs._partition_parameters()[rank]]
            weights = [weight for group in groups for weight in group]
            self._check(parts, weights, rank)
            state = self._sent(mine, parts, rank, keep=to == self._ranks.rank)
            ends = [0, *accumulate(map(len, groups))]
            numbers = [{"params": [*range(*ends[at : at + 2])]} for at in range(len(groups))]
            self._all_state_dicts.append({"state": state, "param_groups": numbers})

    def _check(self, parts: list[Part], weights: list[torch.Tensor], rank: int) -> None:
        """Refuse what is no state of these weights, before memory is spent on it."""
        if len(parts) > MOST_PARTS * len(weights):
            raise TrainError(
                f"rank {rank} ({self._ranks.hosts[rank]}) sends an optimizer's state of {len(parts)} parts "
                f"for {len(weights)} weights"
            )
        for part in parts:
            known = 0 <= part.weight < len(weights) and part.dtype in {"", *TYPES}
            most = LARGEST * weights[part.weight].numel() + 64 if known else 0
            if not known or min(part.shape, default=0) < 0 or math.prod(part.shape) > most:
                raise TrainError(
                    f"rank {rank} ({self._ranks.hosts[rank]}) sends an optimizer's state that is of none of "
                    f"its weights: {part}"
                )

    def _sent(
        self, mine: dict[int, Any], parts: list[Part], rank: int, *, keep: bool
    ) -> dict[int, dict[str, Any]]:
        """Broadcast the tensors of `rank`, in one message; returns its state, on the CPU, if `keep`."""
        device = self._ranks.device
        if rank == self._ranks.rank:
            tensors = [mine[part.weight][part.name] for part in parts if part.dtype]
            message = torch.cat([torch.empty(0, dtype=torch.uint8), *map(_bytes, tensors)]).to(device)
        else:
            message = torch.empty(sum(part.size for part in parts), dtype=torch.uint8, device=device)
        dist.broadcast(message, src=rank)
        state: dict[int, dict[str, Any]] = {}
        pieces = torch.split(message.cpu(), [part.size for part in parts]) if keep else ()
        for part, piece in zip(parts, pieces, strict=False):
            value: Any = part.value
            if part.dtype:  # a copy, because a view must begin at a multiple of its element
                value = piece.clone().view(TYPES[part.dtype]).reshape(part.shape)
            state.setdefault(part.weight, {})[part.name] = value
        return state


def _parts(state: dict[int, dict[str, Any]]) -> Iterator[Part]:
    for weight, values in state.items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                dtype = str(value.dtype).removeprefix("torch.")
                yield Part(weight, name, dtype, list(value.shape), None)
            else:
                yield Part(weight, name, "", [], value)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8)
