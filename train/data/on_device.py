"""Batches on the device of a rank, copied while it still computes the step before."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_map

T = TypeVar("T")


class OnDevice:
    """Moves the tensors of a batch to `device`; a CPU's are there already.

    A copy to a GPU has a stream of its own. So it waits for nothing that the host has queued before, and a
    pinned tensor (`DataLoader(pin_memory=True)`) travels while the GPU computes.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def __call__(self, batch: T) -> T:
        """Return `batch`, any nesting of tensors and other values, on the device."""
        if self.device.type == "cpu":
            return batch
        if self._stream is None:
            return self._moved(batch)
        computes = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._stream):
            moved = self._moved(batch)
        computes.wait_stream(self._stream)
        # Its memory was taken on the other stream: do not use it again before this one is done with it.
        tree_map(lambda leaf: leaf.record_stream(computes) if isinstance(leaf, torch.Tensor) else None, moved)
        return moved

    def _moved(self, batch: T) -> T:
        def moved(leaf: Any) -> Any:
            return leaf.to(self.device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

        return tree_map(moved, batch)  # type: ignore[no-any-return]
