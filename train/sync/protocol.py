"""What a training step asks of a way to synchronise.

sync.optimizer.zero_grad()
with sync.no_sync():                 # all but the last part of a batch that is taken in parts
    backward(loss(sync.model(part)))
backward(loss(sync.model(last_part)))
sync.finish()                        # now every rank's gradients are the mean over the ranks
sync.clip(1.0)
sync.optimizer.step()
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from torch import nn
from torch.optim import Optimizer


class Sync(Protocol):
    """A network and its optimizer in the care of one way to synchronise.

    Every method but `no_sync` is collective: all ranks call it, in the same order.
    """

    model: nn.Module
    """What to call for the forward pass, in training and in evaluation."""
    optimizer: Optimizer

    def no_sync(self) -> AbstractContextManager[None]:
        """Let backward passes in the block add to this rank's own gradients, without communication."""

    def finish(self) -> None:
        """Wait until the gradients of the last backward pass are the mean over all ranks."""

    def clip(self, max_norm: float) -> float:
        """Scale the gradients down to a total 2-norm of `max_norm`; returns the norm that they had."""
