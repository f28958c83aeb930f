"""Collectives of tensors on an mpi4py communicator, for programs that use MPI without a process group.

Importing this module initialises MPI, with the settings of library.py.
"""

from __future__ import annotations

import torch

from . import arguments, collectives
from .library import MPI
from .reduction import plain

__all__ = ["MPI", "all_reduce_sum", "broadcast"]


def all_reduce_sum(comm: MPI.Intracomm, tensor: torch.Tensor) -> None:
    """Replace `tensor`, of any shape and dtype, by its sum over the ranks of `comm`.

    The tensor needs the same size and dtype on every rank. fp16 and bf16 are added in their own precision.
    Raises ValueError, before anything is sent, for a tensor that cannot be sent or added.
    """
    arguments.written(tensor)
    collectives.all_reduce(comm, tensor, plain("SUM", tensor.dtype))


def broadcast(comm: MPI.Intracomm, tensor: torch.Tensor, root: int = 0) -> None:
    """Replace `tensor`, of any shape, dtype and size, by the one of rank `root` of `comm`.

    Raises ValueError, before anything is sent, for a tensor that cannot be sent.
    """
    arguments.written(tensor)
    arguments.root(root, comm.size)
    collectives.broadcast(comm, tensor, root)
