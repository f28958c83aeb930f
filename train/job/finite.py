"""Losses that are inf or nan: noted on the device in each step, and read where the host waits anyway.

Reading the loss in each step would make the host wait for the device, and then the device for the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class NotFinite:
    """What is inf or nan on a rank, for a message, and the lowest rank on which that is so."""

    what: str
    rank: int


class FiniteLosses:
    """Counts this rank's training losses up to the first that is not finite, on their device."""

    def __init__(self) -> None:
        self._good: tuple[torch.Tensor, torch.Tensor] | None = None  # all were finite; how many before

    def note(self, loss: torch.Tensor) -> None:
        """Note a loss, or the sum of several, of one element, without waiting for the device."""
        finite = loss.detach().isfinite()
        if self._good is None:
            self._good = finite, finite.long()
            return
        all_good, count = self._good
        all_good &= finite
        count += all_good

    def first_that_is_not(
        self, weights: Iterable[torch.Tensor], device: torch.device, rank: int, world_size: int
    ) -> NotFinite | None:
        """Return what is not finite on any rank: the earliest loss, else a weight. A collective.

        Both travel as one number each, of which the least wins: number of the loss x ranks + rank.
        """
        numbers = torch.tensor([math.inf, math.inf], dtype=torch.float64)
        if self._good is not None and not self._good[0]:
            numbers[0] = self._good[1].item() * world_size + rank
        if not _all_finite(weights):
            numbers[1] = rank
        if world_size > 1:
            numbers = numbers.to(device)
            dist.all_reduce(numbers, dist.ReduceOp.MIN)
        loss, weight = numbers.tolist()
        if loss < math.inf:
            number, lowest = divmod(int(loss), world_size)
            return NotFinite(f"its training loss number {number + 1} since the start", lowest)
        return NotFinite("a weight", int(weight)) if weight < math.inf else None


@torch.no_grad()
def _all_finite(weights: Iterable[torch.Tensor]) -> bool:
    """Return whether every number is finite, in this rank's part of each; waits for the device once."""
    largest = [
        torch.linalg.vector_norm(part, math.inf).double()  # nan if one is nan, and cannot overflow
        for part in (getattr(weight, "to_local", lambda weight=weight: weight)() for weight in weights)
        if part.numel() and part.is_floating_point()
    ]
    return not largest or math.isfinite(torch.stack([each.to(largest[0].device) for each in largest]).max())
