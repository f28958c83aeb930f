"""What each collective does, in calls of MPI that block; tensors may be of any layout, and on a GPU.

In every one, the ranks agree on the number of elements, so they agree on the calls that it takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..job.mpi_world import MPI
from . import buffers
from .buffers import bring_back, land, message, pieces
from .exchange import exchange
from .progress import meet
from .reduction import Reduction


def broadcast(comm: MPI.Intracomm, tensor: torch.Tensor, root: int) -> None:
    """Give every rank the root's elements."""
    flat = land(tensor, filled=comm.rank == root)
    for piece in pieces(flat):
        comm.Bcast(message(piece), root)
    if comm.rank != root:
        bring_back(tensor, flat)


def all_reduce(comm: MPI.Intracomm, tensor: torch.Tensor, reduction: Reduction) -> None:
    """Replace every rank's elements by the reduction over all ranks."""
    flat = land(tensor, on_host=reduction.on_host)
    reduction.prepare(flat)
    meet(comm, flat.nbytes)
    for piece in pieces(flat, buffers.REDUCED_AT_ONCE // flat.itemsize):
        comm.Allreduce(MPI.IN_PLACE, message(piece, reduction.datatype), reduction.op)
    reduction.conclude(flat, comm.size)
    bring_back(tensor, flat)


def reduce(comm: MPI.Intracomm, tensor: torch.Tensor, reduction: Reduction, root: int) -> None:
    """Replace the root's elements by the reduction over all ranks; the others keep theirs."""
    flat = land(tensor, on_host=reduction.on_host)
    if comm.rank != root and reduction.factor is not None:
        flat = flat.clone()
    reduction.prepare(flat)
    for piece in pieces(flat):
        part = message(piece, reduction.datatype)
        if comm.rank == root:
            comm.Reduce(MPI.IN_PLACE, part, reduction.op, root)
        else:
            comm.Reduce(part, None, reduction.op, root)
    if comm.rank == root:
        reduction.conclude(flat, comm.size)
        bring_back(tensor, flat)


def all_gather_single(comm: MPI.Intracomm, output: torch.Tensor, tensor: torch.Tensor) -> None:
    """Fill `output`, of world size times the elements of `tensor`, with every rank's, in rank order."""
    whole, part = land(output, filled=False), land(tensor)
    if whole.numel() != part.numel() * comm.size:
        raise ValueError(
            f"an output of {whole.numel()} elements for {comm.size} ranks with {part.numel()} each"
        )
    meet(comm, whole.nbytes)
    if part.numel() <= buffers.LIMIT:
        _all_gather(comm, whole, part)
    else:
        _all_gather_in_pieces(comm, whole, part)
    bring_back(output, whole)


def _all_gather_in_pieces(comm: MPI.Intracomm, whole: torch.Tensor, part: torch.Tensor) -> None:
    rows = whole.view(comm.size, -1)
    for columns, piece in zip(rows.split(buffers.LIMIT, dim=1), pieces(part), strict=True):
        gathered = torch.empty_like(columns, memory_format=torch.contiguous_format)
        _all_gather(comm, gathered.view(-1), piece)
        columns.copy_(gathered)


def _all_gather(comm: MPI.Intracomm, whole: torch.Tensor, part: torch.Tensor) -> None:
    count = part.numel()
    memory, _, datatype = message(whole)
    # MPI forbids that the two overlap, except so: the part is its own place in the whole (as FSDP calls it).
    in_place = part.data_ptr() == whole[comm.rank * count :].data_ptr()
    comm.Allgather(MPI.IN_PLACE if in_place else message(part), [memory, count, datatype])


def all_gather(comm: MPI.Intracomm, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
    """Fill `outputs[rank]` with each rank's tensor; they may differ in size."""
    if any(output.numel() != tensor.numel() for output in outputs):
        exchange(comm, [tensor] * comm.size, outputs)
        return
    whole = torch.empty((comm.size, tensor.numel()), dtype=tensor.dtype)
    all_gather_single(comm, whole, tensor)
    for output, row in zip(outputs, whole, strict=True):
        output.detach().copy_(row.view(output.shape))


def reduce_scatter_single(
    comm: MPI.Intracomm, output: torch.Tensor, tensor: torch.Tensor, reduction: Reduction
) -> None:
    """Fill `output` with this rank's part, in rank order, of the reduction of `tensor` over all ranks."""
    mine, whole = (
        land(output, filled=False, on_host=reduction.on_host),
        land(tensor, on_host=reduction.on_host),
    )
    if whole.numel() != mine.numel() * comm.size:
        raise ValueError(f"{whole.numel()} elements for {comm.size} ranks with room for {mine.numel()} each")
    if reduction.factor is not None or _overlap(mine, whole):
        whole = whole.clone()
    reduction.prepare(whole)
    columns = whole.view(comm.size, -1).split(buffers.LIMIT, dim=1)
    meet(comm, whole.nbytes)
    for column, piece in zip(columns, pieces(mine), strict=True):
        sent = column.contiguous()
        memory, _, datatype = message(sent, reduction.datatype)
        comm.Reduce_scatter_block(
            [memory, piece.numel(), datatype], message(piece, reduction.datatype), reduction.op
        )
    reduction.conclude(mine, comm.size)
    bring_back(output, mine)


def _overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def reduce_scatter(
    comm: MPI.Intracomm, output: torch.Tensor, inputs: Sequence[torch.Tensor], reduction: Reduction
) -> None:
    """Fill `output` with the reduction of every rank's `inputs[this rank]`; parts may differ in size."""
    sizes = {part.numel() for part in inputs}
    if len(sizes) == 1:
        reduce_scatter_single(comm, output, torch.cat([part.reshape(-1) for part in inputs]), reduction)
        return
    for root, part in enumerate(inputs):
        sum_of_part = part.detach().clone()
        reduce(comm, sum_of_part, reduction, root)
        if root == comm.rank:
            output.detach().copy_(sum_of_part.view(output.shape))
