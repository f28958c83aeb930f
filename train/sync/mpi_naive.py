"""The loop of the usual mpi4py tutorial: after the backward pass, one blocking Allreduce for each parameter.

It is correct, short, and a lesson in what costs: nothing overlaps, and every small tensor pays the latency of
a message. Compare it with mpi_buckets.py, which does the same sums.
"""

from __future__ import annotations

from typing import Any

import torch
from mpi4py import MPI
from torch import nn
from torch.optim import Optimizer

from ..group import Group
from ..mpi import broadcast_weights, communicator
from .alone import Alone


class MpiNaive(Alone):
    """See protocol.py for the methods."""

    def __init__(
        self, network: nn.Module, group: Group, optimizer: type[Optimizer], options: dict[str, Any]
    ) -> None:
        super().__init__(network, group, optimizer, options)
        self.comm = communicator(group.ranks)
        broadcast_weights(network, self.comm)

    def finish(self) -> None:
        for parameter in self.network.parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            total = gradient.detach().cpu().contiguous()
            self.comm.Allreduce(MPI.IN_PLACE, total.numpy())
            parameter.grad = (total / self.comm.size).to(parameter.device)
