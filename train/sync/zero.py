"""ZeRO stage 1: DistributedDataParallel, but each rank has the optimizer's state for a part of the weights.

A rank updates its part and broadcasts it. With Adam that saves, on each of n ranks, (1 - 1/n) of two numbers
per weight: Rajbhandari et al., ZeRO, 2020 (arXiv:1910.02054), section 5.1.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from ..group import Group
from .ddp import Ddp


class Zero(Ddp):
    """See protocol.py for the methods; gradients are whole on every rank, so clipping is DDP's."""

    def __init__(
        self, network: nn.Module, group: Group, optimizer: type[Optimizer], options: dict[str, Any]
    ) -> None:
        super().__init__(network, group, optimizer, options)
        self.optimizer: ZeroRedundancyOptimizer = ZeroRedundancyOptimizer(
            network.parameters(), optimizer_class=optimizer, **options
        )
