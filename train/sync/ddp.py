"""DistributedDataParallel: torch's own way, and the one to begin with.

It all-reduces gradients in buckets, each as soon as the backward pass has filled it, so that communication
and computation overlap: Li et al., PyTorch Distributed, 2020 (arXiv:2006.15704).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ..group import Group
from .alone import Alone


class Ddp(Alone):
    """See protocol.py for the methods."""

    def __init__(
        self, network: nn.Module, group: Group, optimizer: type[Optimizer], options: dict[str, Any]
    ) -> None:
        super().__init__(network, group, optimizer, options)
        self.model: DistributedDataParallel = DistributedDataParallel(network, gradient_as_bucket_view=True)

    def no_sync(self) -> AbstractContextManager[None]:
        return self.model.no_sync()
