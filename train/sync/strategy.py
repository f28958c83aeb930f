"""What a training step asks of a strategy.

strategy.optimizer.zero_grad()
with strategy.no_sync():             # all parts of a batch but the last, when gradients are accumulated
    backward(loss(strategy.model(part)))
backward(loss(strategy.model(last_part)))
strategy.clip(1.0)                   # every rank's gradients are the mean over the ranks
strategy.optimizer.step()
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from torch import nn
from torch.optim import Optimizer


class Strategy(Protocol):
    """A model and its optimizer, trained by all ranks together.

    Every method but `no_sync` is a collective: all ranks call it, in the same order.
    """

    model: nn.Module
    """The module to call for the forward pass, in training and in evaluation."""
    optimizer: Optimizer

    def no_sync(self) -> AbstractContextManager[None]:
        """Let backward passes in the block add to this rank's own gradients, without communication."""

    def clip(self, max_norm: float) -> float:
        """Scale the gradients down to a total 2-norm of `max_norm`; returns the norm before."""

    def share_buffers(self) -> None:
        """Give every rank the buffers of rank 0, such as the running statistics of a BatchNorm.

        Each rank's forward passes update its own. Call this before an evaluation and before a checkpoint.
        """
