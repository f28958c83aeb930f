"""gather, scatter and all_to_all, as messages between pairs of ranks.

Each pair knows its own sizes, so none need be equal, none need fit into a C int, and every tensor is sent
from and received into its own memory. MPI's own calls for large messages do the same inside.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..job.mpi_world import MPI
from .buffers import bring_back, land, message, pieces

# MPI keeps a pair's messages in order, and all ranks have their collectives in one order: a tag is enough.
_TAG = 0


def exchange(
    comm: MPI.Intracomm, sends: Sequence[torch.Tensor | None], receives: Sequence[torch.Tensor | None]
) -> None:
    """Send `sends[rank]` to each rank, receive `receives[rank]` from each; None where there is nothing to do.

    Raises MPI.Exception, "message truncated", if more comes than was expected.
    """
    me = comm.rank
    landed = [None if tensor is None else land(tensor, filled=False) for tensor in receives]
    leaving = [None if tensor is None else land(tensor) for tensor in sends]
    requests = [
        comm.Irecv(message(piece), rank, _TAG)
        for rank, flat in enumerate(landed)
        if flat is not None and rank != me
        for piece in pieces(flat)
    ]
    requests += [
        comm.Isend(message(piece), rank, _TAG)
        for rank, flat in enumerate(leaving)
        if flat is not None and rank != me
        for piece in pieces(flat)
    ]
    own, home = leaving[me], landed[me]
    if own is not None and home is not None:
        home.copy_(own)
    MPI.Request.Waitall(requests)
    for tensor, flat in zip(receives, landed, strict=True):
        if tensor is not None and flat is not None:
            bring_back(tensor, flat)


def gather(comm: MPI.Intracomm, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> None:
    """Fill `outputs`, which only the root has, with every rank's `tensor`."""
    nothing = [None] * comm.size
    sends = [tensor if rank == root else None for rank in range(comm.size)]
    exchange(comm, sends, outputs if comm.rank == root else nothing)


def scatter(comm: MPI.Intracomm, output: torch.Tensor, inputs: Sequence[torch.Tensor], root: int) -> None:
    """Fill `output` with this rank's part of `inputs`, which only the root has."""
    nothing = [None] * comm.size
    receives = [output if rank == root else None for rank in range(comm.size)]
    exchange(comm, inputs if comm.rank == root else nothing, receives)


def all_to_all_single(
    comm: MPI.Intracomm,
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_sizes: Sequence[int],
    input_sizes: Sequence[int],
) -> None:
    """Send to each rank its rows of `tensor`, in rank order; sizes are in rows, none: equal parts."""
    flat = land(output, filled=False).view(output.shape)
    exchange(
        comm,
        _split(land(tensor).view(tensor.shape), input_sizes, comm.size),
        _split(flat, output_sizes, comm.size),
    )
    bring_back(output, flat.view(-1))


def _split(tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> Sequence[torch.Tensor]:
    if sizes:
        return tensor.split(list(sizes))
    if tensor.shape[0] % ranks:
        raise ValueError(f"{tensor.shape[0]} rows do not divide into equal parts for {ranks} ranks")
    return tensor.split(tensor.shape[0] // ranks)
