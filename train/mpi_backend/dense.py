"""Collectives of dense tensors, in blocking calls of MPI; tensors may have any layout, and be on a GPU.

The ranks agree on the number of elements, so each makes the same number of calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import buffers, large
from .buffers import host_memory, message, overlap, pieces, stage_in, stage_out
from .exchange import exchange
from .library import MPI
from .reduction import Reduction
from .waiting import wait_for_all_ranks


def broadcast(comm: MPI.Intracomm, tensor: torch.Tensor, root: int) -> None:
    """Replace every rank's elements by the root's."""
    flat = stage_in(tensor, filled=comm.rank == root)
    for piece in pieces(flat):
        comm.Bcast(message(piece), root)
    if comm.rank != root:
        stage_out(tensor, flat)


def all_reduce(comm: MPI.Intracomm, tensor: torch.Tensor, reduction: Reduction) -> None:
    """Replace every rank's elements by the reduction over all ranks."""
    flat = reduction.prepare(stage_in(tensor, on_host=reduction.on_host), may_overwrite=True)
    if large.suits(comm, flat):
        large.all_reduce(comm, flat, reduction)
    else:
        wait_for_all_ranks(comm, flat.nbytes)
        for piece in pieces(flat, buffers.REDUCED_AT_ONCE // flat.itemsize):
            comm.Allreduce(MPI.IN_PLACE, message(piece, reduction.datatype), reduction.op)
    reduction.returned()
    reduction.conclude(flat, comm.size)
    stage_out(tensor, flat)


def reduce(comm: MPI.Intracomm, tensor: torch.Tensor, reduction: Reduction, root: int) -> None:
    """Replace the root's elements by the reduction over all ranks; the other ranks keep theirs."""
    at_root = comm.rank == root
    flat = reduction.prepare(stage_in(tensor, on_host=reduction.on_host), may_overwrite=at_root)
    for piece in pieces(flat):
        part = message(piece, reduction.datatype)
        if at_root:
            comm.Reduce(MPI.IN_PLACE, part, reduction.op, root)
        else:
            comm.Reduce(part, None, reduction.op, root)
    reduction.returned()
    if at_root:
        reduction.conclude(flat, comm.size)
        stage_out(tensor, flat)


def all_gather_single(comm: MPI.Intracomm, output: torch.Tensor, tensor: torch.Tensor) -> None:
    """Fill `output` with every rank's `tensor`, in rank order; it has world size times its elements."""
    whole, part = stage_in(output, filled=False), stage_in(tensor)
    wait_for_all_ranks(comm, whole.nbytes)
    if part.numel() <= buffers.LIMIT:
        _all_gather(comm, whole, part)
    else:
        _all_gather_in_pieces(comm, whole, part)
    stage_out(output, whole)


def _all_gather_in_pieces(comm: MPI.Intracomm, whole: torch.Tensor, part: torch.Tensor) -> None:
    rows = whole.view(comm.size, -1)
    for columns, piece in zip(rows.split(buffers.LIMIT, dim=1), pieces(part), strict=True):
        gathered = torch.empty_like(columns, memory_format=torch.contiguous_format)
        _all_gather(comm, gathered.view(-1), piece)
        columns.copy_(gathered)


def _all_gather(comm: MPI.Intracomm, whole: torch.Tensor, part: torch.Tensor) -> None:
    count = part.numel()
    memory, _, datatype = message(whole)
    # MPI forbids overlapping buffers, but allows that the part is already at its place in the whole. FSDP
    # calls it so.
    in_place = part.data_ptr() == whole[comm.rank * count :].data_ptr()
    comm.Allgather(MPI.IN_PLACE if in_place else message(part), [memory, count, datatype])


def all_gather(comm: MPI.Intracomm, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
    """Fill `outputs[rank]` with each rank's tensor; they may differ in size."""
    if any(output.numel() != tensor.numel() for output in outputs):
        exchange(comm, [tensor] * comm.size, outputs)
        return
    whole = host_memory((comm.size, tensor.numel()), tensor)
    all_gather_single(comm, whole, tensor)
    for output, row in zip(outputs, whole, strict=True):
        output.detach().copy_(row.view(output.shape))


def reduce_scatter_single(
    comm: MPI.Intracomm, output: torch.Tensor, tensor: torch.Tensor, reduction: Reduction
) -> None:
    """Fill `output` with this rank's part, in rank order, of the reduction of `tensor` over all ranks."""
    whole = reduction.prepare(stage_in(tensor, on_host=reduction.on_host), may_overwrite=False)
    if reduction.accumulate is None:
        mine = stage_in(output, filled=False, on_host=reduction.on_host)
    else:
        mine = host_memory((output.numel(),), output, reduction.accumulate)
    if overlap(mine, whole):
        whole = whole.clone()
    if large.suits(comm, whole):
        large.reduce_scatter(comm, mine, whole, reduction)
    else:
        wait_for_all_ranks(comm, whole.nbytes)
        columns = whole.view(comm.size, mine.numel()).split(buffers.LIMIT, dim=1)
        for column, piece in zip(columns, pieces(mine), strict=True):
            _reduce_scatter(comm, piece, column.contiguous(), reduction)
    reduction.returned()
    reduction.conclude(mine, comm.size)
    stage_out(output, mine)


def _reduce_scatter(
    comm: MPI.Intracomm, mine: torch.Tensor, whole: torch.Tensor, reduction: Reduction
) -> None:
    memory, _, datatype = message(whole, reduction.datatype)
    part = message(mine, reduction.datatype)
    comm.Reduce_scatter_block([memory, mine.numel(), datatype], part, reduction.op)


def reduce_scatter(
    comm: MPI.Intracomm, output: torch.Tensor, inputs: Sequence[torch.Tensor], reduction: Reduction
) -> None:
    """Fill `output` with the reduction of every rank's `inputs[this rank]`; parts may differ in size."""
    if len({part.numel() for part in inputs}) == 1:
        reduce_scatter_single(comm, output, torch.cat([part.reshape(-1) for part in inputs]), reduction)
        return
    for root, part in enumerate(inputs):
        reduced = part.detach().clone()
        reduce(comm, reduced, reduction, root)
        if root == comm.rank:
            output.detach().copy_(reduced.view(output.shape))
