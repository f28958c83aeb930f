"""Reductions of large tensors on one host, by messages, so that a rank that waits for another sleeps.

MPI's own reduction is many small exchanges, and MPI polls in each. Where other programs use the cores, every
exchange costs a turn of the scheduler. Here there are two: each rank adds up its part of the tensor from all
ranks, then sends it to all; reduce_scatter is the first of them. Between hosts MPI knows the network, and
keeps its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from .buffers import BY_SIZE, message
from .library import MPI
from .reduction import Reduction
from .waiting import LARGE, wait_until

# Bytes that are exchanged at once. Memory to receive them, all but a rank's own part, is kept: the system
# would clear new memory in each call.
AT_ONCE = 2**25

_TAG = 0
_spare: list[bytearray] = []  # memory to receive into, which no thread uses now
_on_one_host = MPI.Comm.Create_keyval()  # of a communicator: whether its ranks share a host


def suits(comm: MPI.Intracomm, flat: torch.Tensor) -> bool:
    """Return whether a reduction of `flat` is faster here; the ranks of `comm` ask it together."""
    return flat.nbytes >= LARGE and comm.size > 1 and flat.is_cpu and _one_host(comm)


def all_reduce(comm: MPI.Intracomm, flat: torch.Tensor, reduction: Reduction) -> None:
    """Replace the elements of every rank by the reduction.

    One rank computes each, so all ranks get equal bits.
    """
    for piece in flat.tensor_split(-(-flat.nbytes // AT_ONCE)):
        parts = piece.tensor_split(comm.size)
        _reduce(comm, parts, reduction)
        _spread(comm, parts)


def reduce_scatter(
    comm: MPI.Intracomm, mine: torch.Tensor, whole: torch.Tensor, reduction: Reduction
) -> None:
    """Fill `mine` with this rank's part of the reduction of `whole`, whose parts are as large as `mine`."""
    count = AT_ONCE // comm.size // whole.element_size()
    pieces = whole.view(comm.size, -1).split(count, dim=1)
    for result, parts in zip(mine.split(count), pieces, strict=True):
        result.copy_(parts[comm.rank])
        of_ranks = [parts[rank] for rank in range(comm.size)]
        of_ranks[comm.rank] = result
        _reduce(comm, of_ranks, reduction)


def _reduce(comm: MPI.Intracomm, parts: Sequence[torch.Tensor], reduction: Reduction) -> None:
    """Add the other ranks' elements of this rank's part to its own, in the order of the ranks."""
    mine, others = parts[comm.rank], _others(comm)
    memory = _taken(mine.nbytes * len(others))
    rows = [memoryview(memory)[at * mine.nbytes : (at + 1) * mine.nbytes] for at in range(len(others))]
    kind = BY_SIZE[mine.element_size()]
    arriving = [
        comm.Irecv([row, mine.numel(), kind], rank, _TAG) for row, rank in zip(rows, others, strict=True)
    ]
    _complete(arriving + [comm.Isend(message(parts[rank]), rank, _TAG) for rank in others])
    for row in rows:
        theirs = [row, mine.numel(), reduction.datatype]
        reduction.op.Reduce_local(theirs, message(mine, reduction.datatype))
    _spare.append(memory)


def _spread(comm: MPI.Intracomm, parts: Sequence[torch.Tensor]) -> None:
    """Send this rank's part to every other, and receive theirs."""
    mine, others = parts[comm.rank], _others(comm)
    arriving = [comm.Irecv(message(parts[rank]), rank, _TAG) for rank in others]
    _complete(arriving + [comm.Isend(message(mine), rank, _TAG) for rank in others])


def _others(comm: MPI.Intracomm) -> list[int]:
    return [rank for rank in range(comm.size) if rank != comm.rank]


def _complete(requests: list[MPI.Request]) -> None:
    try:
        wait_until(partial(MPI.Request.Testall, requests), float("inf"), "a large reduction")
    except BaseException:  # Ctrl-C; MPI still uses the memory
        MPI.Request.Waitall(requests)
        raise


def _taken(size: int) -> bytearray:
    """Return at least `size` bytes, which the caller gives back to `_spare`."""
    memory = _spare.pop() if _spare else bytearray()
    return memory if len(memory) >= size else bytearray(size)


def _one_host(comm: MPI.Intracomm) -> bool:
    known = comm.Get_attr(_on_one_host)
    if known is None:
        near = comm.Split_type(MPI.COMM_TYPE_SHARED)
        known = near.size == comm.size
        near.Free()
        comm.Set_attr(_on_one_host, known)
    return bool(known)
