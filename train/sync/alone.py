"""No synchronisation: every rank has the whole network, and keeps its gradients to itself.

It is what there is without communication, for benchmarks, and what the ways build on that copy the network to
every rank.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from ..group import Group


class Alone:
    """See protocol.py for the methods."""

    def __init__(
        self, network: nn.Module, group: Group, optimizer: type[Optimizer], options: dict[str, Any]
    ) -> None:
        self.network = network
        self.model = network
        self.optimizer = optimizer(network.parameters(), **options)

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def finish(self) -> None:
        pass

    def clip(self, max_norm: float) -> float:
        return float(clip_grad_norm_(self.network.parameters(), max_norm))
