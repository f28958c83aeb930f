"""gather, scatter and all_to_all, as messages between pairs of ranks, but equal parts of one tensor.

Each pair knows the sizes of its own messages. So they may differ, need not fit into a C int, and every tensor
is sent from and received into its own memory. MPI's own calls do the same for large messages; for a few bytes
one call of MPI takes a third of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import buffers
from .buffers import bytes_received, message, overlap, pieces, stage_in, stage_out
from .exceptions import MismatchError
from .library import MPI
from .waiting import wait_for_all_ranks

# MPI keeps the messages of a pair in order, and all ranks call the collectives in one order: one tag is
# enough.
TAG = 0

Tensors = Sequence[torch.Tensor | None]


def exchange(comm: MPI.Intracomm, sends: Tensors, receives: Tensors) -> None:
    """Send `sends[rank]` to each rank and receive `receives[rank]` from each; None means no message.

    Raises MismatchError if a rank sent fewer elements than expected, and MPI.Exception, "message truncated",
    if it sent more.
    """
    me = comm.rank
    arriving = [None if tensor is None else stage_in(tensor, filled=False) for tensor in receives]
    leaving = [None if tensor is None else stage_in(tensor) for tensor in sends]
    expected = _messages(arriving, me)
    requests = [comm.Irecv(message(piece), rank, TAG) for rank, piece in expected]
    requests += [comm.Isend(message(piece), rank, TAG) for rank, piece in _messages(leaving, me)]
    statuses = [MPI.Status() for _ in requests]
    mine, theirs = leaving[me], arriving[me]
    if mine is not None and theirs is not None and mine.nbytes == theirs.nbytes:
        theirs.copy_(mine)
    MPI.Request.Waitall(requests, statuses)
    # Only now, when no message is under way any more, may an error end this.
    if mine is not None and theirs is not None:
        check_size(me, mine.nbytes, theirs.nbytes)
    for (rank, piece), status in zip(expected, statuses, strict=False):  # the sends' statuses come last
        check_size(rank, bytes_received(status), piece.nbytes)
    for tensor, flat in zip(receives, arriving, strict=True):
        if tensor is not None and flat is not None:
            stage_out(tensor, flat)


def _messages(tensors: Tensors, me: int) -> list[tuple[int, torch.Tensor]]:
    """Return each message as the other rank and a flat tensor."""
    others = [(rank, flat) for rank, flat in enumerate(tensors) if flat is not None and rank != me]
    return [(rank, piece) for rank, flat in others for piece in pieces(flat)]


def check_size(rank: int, received: int, expected: int) -> None:
    """Raise MismatchError if a message has another size than expected."""
    if received != expected:
        raise MismatchError(f"rank {rank} sent {received} bytes where {expected} were expected")


def gather(comm: MPI.Intracomm, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> None:
    """Fill the root's `outputs` with every rank's `tensor`; on other ranks `outputs` is ignored."""
    nothing = [None] * comm.size
    sends = [tensor if rank == root else None for rank in range(comm.size)]
    exchange(comm, sends, outputs if comm.rank == root else nothing)


def scatter(comm: MPI.Intracomm, output: torch.Tensor, inputs: Sequence[torch.Tensor], root: int) -> None:
    """Fill `output` with this rank's part of the root's `inputs`; on other ranks `inputs` is ignored."""
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
    """Send to each rank its rows of `tensor`, in rank order; sizes are in rows, none mean equal parts.

    Sizes are given by all ranks or by none, as in torch's own MPI backend.
    """
    if not (output_sizes or input_sizes) and tensor.numel() <= buffers.LIMIT * comm.size:
        _equal_parts(comm, output, tensor)
        return
    flat = stage_in(output, filled=False).view(output.shape)
    exchange(
        comm,
        _split(stage_in(tensor).view(tensor.shape), input_sizes, comm.size),
        _split(flat, output_sizes, comm.size),
    )
    stage_out(output, flat.view(-1))


def _equal_parts(comm: MPI.Intracomm, output: torch.Tensor, tensor: torch.Tensor) -> None:
    received, sent = stage_in(output, filled=False), stage_in(tensor)
    if overlap(received, sent):
        sent = sent.clone()
    wait_for_all_ranks(comm, sent.nbytes)
    count = sent.numel() // comm.size
    memory, _, datatype = message(sent)
    room, _, _ = message(received)
    comm.Alltoall([memory, count, datatype], [room, count, datatype])
    stage_out(output, received)


def _split(tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> Sequence[torch.Tensor]:
    # split(0) would give one part
    return tensor.split(list(sizes)) if sizes else tensor.tensor_split(ranks)
