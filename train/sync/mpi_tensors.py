"""Tensors over MPI: sums and broadcasts, in pieces that a count of MPI holds, and of types that MPI lacks."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from ..job.mpi_world import MPI

# Bytes in one sum: Open MPI receives into memory of its own, which the system maps anew for large messages.
SUMMED_AT_ONCE = 4 << 20
SENT_AT_ONCE = 64 << 20  # bytes in one broadcast: a count of MPI has 31 bits


def all_reduce_sum(comm: MPI.Intracomm, flat: torch.Tensor) -> None:
    """Replace `flat`, one-dimensional and on the CPU, by its sum over the ranks of `comm`."""
    # To numpy and MPI a half is a 16-bit integer: only our own operation adds it as what it is.
    half = flat.dtype in {torch.float16, torch.bfloat16}
    operation = _half_sum(flat.dtype) if half else MPI.SUM
    words = flat.view(torch.int16) if half else flat
    for piece in torch.split(words, SUMMED_AT_ONCE // flat.itemsize):
        comm.Allreduce(MPI.IN_PLACE, piece.numpy(), operation)


def broadcast(comm: MPI.Intracomm, tensor: torch.Tensor) -> None:
    """Overwrite `tensor`, wherever it is, with that of rank 0 of `comm`."""
    copy = tensor.detach().cpu().contiguous()
    words = copy.reshape(-1).view(torch.uint8)  # MPI need not know the type
    for piece in torch.split(words, SENT_AT_ONCE):
        comm.Bcast(piece.numpy())
    tensor.detach().copy_(copy)


@cache
def _half_sum(dtype: torch.dtype) -> MPI.Op:
    """Return the sum of float16 or bfloat16 as an operation of MPI, which calls back for every part."""

    def add(theirs: Any, mine: Any, _: MPI.Datatype) -> None:
        if len(mine):  # Open MPI cuts a short vector into empty parts too, which torch.frombuffer refuses
            into = torch.frombuffer(mine, dtype=dtype)
            into += torch.frombuffer(theirs, dtype=dtype)

    return MPI.Op.Create(add, commute=True)
