"""Losses that are inf or nan: noted on the device in each step, and read where the host waits anyway.

Reading the loss in each step would make the host wait for the device, and then the device for the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch


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

    def first_bad(self) -> int:
        """Return the number, from 0, of the first loss that was not finite, else -1; waits for the device."""
        return -1 if self._good is None or self._good[0] else int(self._good[1].item())


@torch.no_grad()
def all_finite(weights: Iterable[torch.Tensor]) -> bool:
    """Return whether every number is finite, in this rank's part of each; waits for the device once."""
    largest = [
        torch.linalg.vector_norm(part, math.inf).double()  # nan if one is nan, and cannot overflow
        for part in (getattr(weight, "to_local", lambda weight=weight: weight)() for weight in weights)
        if part.numel() and part.is_floating_point()
    ]
    return not largest or math.isfinite(torch.stack([each.to(largest[0].device) for each in largest]).max())
