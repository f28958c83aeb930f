"""ZeRO stage 1: DistributedDataParallel, but each rank keeps the optimizer's state of a part of the weights.

A rank updates its part and broadcasts it. With Adam that saves, on each of n ranks, (1 - 1/n) of two numbers
per weight: Rajbhandari et al., ZeRO, 2020 (arXiv:1910.02054), section 5.1.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from ..job.group import Group
from .ddp import Ddp


class Zero(Ddp):
    """`--sync zero`; strategy.py describes the methods. Every rank has all gradients, as with DDP."""

    def __init__(
        self, model: nn.Module, group: Group, optimizer: type[Optimizer], options: dict[str, Any]
    ) -> None:
        super().__init__(model, group, optimizer, options)
        self.optimizer: ZeroRedundancyOptimizer = ZeroRedundancyOptimizer(
            self.replica.parameters(), optimizer_class=optimizer, **options
        )
