"""Broadcasts of tensors over MPI, in pieces that a count of MPI holds."""

from __future__ import annotations

import torch

from ..job.mpi_world import MPI

SENT_AT_ONCE = 64 << 20  # bytes in one broadcast: a count of MPI has 31 bits


def broadcast(comm: MPI.Intracomm, tensor: torch.Tensor) -> None:
    """Overwrite `tensor`, wherever it is, with that of rank 0 of `comm`."""
    copy = tensor.detach().cpu().contiguous()
    words = copy.reshape(-1).view(torch.uint8)  # bytes, so that MPI need not know the type
    for piece in torch.split(words, SENT_AT_ONCE):
        comm.Bcast(piece.numpy())
    tensor.detach().copy_(copy)
