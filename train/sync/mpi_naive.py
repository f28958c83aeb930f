"""The loop of the usual mpi4py tutorial: after the backward pass, one blocking Allreduce for each parameter.

It is correct and short, and it shows what costs time: nothing overlaps, and every small tensor pays the
latency of a message. mpi_buckets.py makes the same sums.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..job.group import Group
from ..job.mpi_world import communicator
from ..mpi_backend.direct import all_reduce_sum
from .mpi_tensors import broadcast
from .replicated import Replicated


class MpiNaive(Replicated):
    """`--sync mpi4py-naive`; strategy.py describes the methods."""

    def __init__(
        self, model: nn.Module, group: Group, optimizer: type[Optimizer], options: dict[str, Any]
    ) -> None:
        super().__init__(model, group, optimizer, options)
        self.comm = communicator(group.ranks)
        for tensor in model.state_dict().values():
            broadcast(self.comm, tensor)

    def finish(self) -> None:
        trained = [each for each in self.replica.parameters() if each.requires_grad]
        ranks_with_gradient = torch.tensor([float(each.grad is not None) for each in trained])
        all_reduce_sum(self.comm, ranks_with_gradient)
        for parameter, ranks in zip(trained, ranks_with_gradient.tolist(), strict=True):
            if ranks:  # a gradient of zeros would let momentum and weight decay move the parameter
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                total = gradient.detach().cpu().contiguous()
                all_reduce_sum(self.comm, total.view(-1))
                parameter.grad = (total / self.comm.size).to(parameter.device)
