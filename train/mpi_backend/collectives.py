"""Collectives of tensors in calls of MPI; tensors may have any layout, and be on a GPU.

The ranks agree on the number of elements, so each makes the same number of calls. Only gather, scatter and
all_to_all are messages between pairs of ranks, except equal parts of one tensor: each pair knows the sizes of
its own messages. So they may differ, need not fit into a C int, and every tensor is sent from and received
into its own memory. Reductions of large tensors on one host are messages too, so that a rank that waits for
another sleeps (docs/mpi-backend.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import torch

from . import buffers
from .buffers import BY_SIZE, bytes_received, host_memory, message, overlap, pieces, stage_in, stage_out
from .exceptions import MismatchError
from .library import LARGE, MPI, wait_for_all_ranks, wait_until
from .reduction import Reduction


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
    if _suits_messages(comm, flat):
        _all_reduce_by_messages(comm, flat, reduction)
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
    count = part.numel()
    wait_for_all_ranks(comm, whole.nbytes)
    if count > buffers.LIMIT:
        exchange(comm, [part] * comm.size, whole.view(comm.size, -1).unbind())
    else:
        memory, _, datatype = message(whole)
        # MPI forbids overlapping buffers, but allows that the part is already at its place in the whole. FSDP
        # calls it so.
        in_place = part.data_ptr() == whole[comm.rank * count :].data_ptr()
        comm.Allgather(MPI.IN_PLACE if in_place else message(part), [memory, count, datatype])
    stage_out(output, whole)


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
    if _suits_messages(comm, whole):
        _reduce_scatter_by_messages(comm, mine, whole, reduction)
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
    _wait_for_all(requests, statuses)
    # Only now, when no message is under way any more, may an error end this.
    if mine is not None and theirs is not None:
        check_size(me, mine.nbytes, theirs.nbytes)
    for (rank, piece), status in zip(expected, statuses, strict=False):  # the sends' statuses come last
        check_size(rank, bytes_received(status), piece.nbytes)
    for tensor, flat in zip(receives, arriving, strict=True):
        if tensor is not None and flat is not None:
            stage_out(tensor, flat)


def _messages(tensors: Tensors, me: int) -> list[tuple[int, torch.Tensor]]:
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


# Bytes that are exchanged at once. Memory to receive them, all but a rank's own part, is kept: the system
# would clear new memory in each call.
AT_ONCE = 2**25

_spare: list[bytearray] = []  # memory to receive into, which no thread uses now
_on_one_host = MPI.Comm.Create_keyval()  # of a communicator: whether its ranks share a host


def _suits_messages(comm: MPI.Intracomm, flat: torch.Tensor) -> bool:
    """Return whether a reduction of `flat` is faster here; the ranks of `comm` ask it together."""
    return flat.nbytes >= LARGE and comm.size > 1 and flat.is_cpu and _one_host(comm)


def _all_reduce_by_messages(comm: MPI.Intracomm, flat: torch.Tensor, reduction: Reduction) -> None:
    """Replace the elements of every rank by the reduction.

    One rank computes each, so all ranks get equal bits.
    """
    for piece in flat.tensor_split(-(-flat.nbytes // AT_ONCE)):
        parts = piece.tensor_split(comm.size)
        _add_up(comm, parts, reduction)
        _spread(comm, parts)


def _reduce_scatter_by_messages(
    comm: MPI.Intracomm, mine: torch.Tensor, whole: torch.Tensor, reduction: Reduction
) -> None:
    """Fill `mine` with this rank's part of the reduction of `whole`, whose parts are as large as `mine`."""
    count = AT_ONCE // comm.size // whole.element_size()
    pieces = whole.view(comm.size, -1).split(count, dim=1)
    for result, parts in zip(mine.split(count), pieces, strict=True):
        result.copy_(parts[comm.rank])
        of_ranks = [parts[rank] for rank in range(comm.size)]
        of_ranks[comm.rank] = result
        _add_up(comm, of_ranks, reduction)


def _add_up(comm: MPI.Intracomm, parts: Sequence[torch.Tensor], reduction: Reduction) -> None:
    """Add the other ranks' elements of this rank's part to its own, in the order of the ranks."""
    mine, others = parts[comm.rank], _others(comm)
    memory = _taken(mine.nbytes * len(others))
    rows = [memoryview(memory)[at * mine.nbytes : (at + 1) * mine.nbytes] for at in range(len(others))]
    kind = BY_SIZE[mine.element_size()]
    arriving = [
        comm.Irecv([row, mine.numel(), kind], rank, TAG) for row, rank in zip(rows, others, strict=True)
    ]
    _complete(arriving + [comm.Isend(message(parts[rank]), rank, TAG) for rank in others])
    for row in rows:
        theirs = [row, mine.numel(), reduction.datatype]
        reduction.op.Reduce_local(theirs, message(mine, reduction.datatype))
    _spare.append(memory)


def _spread(comm: MPI.Intracomm, parts: Sequence[torch.Tensor]) -> None:
    mine, others = parts[comm.rank], _others(comm)
    arriving = [comm.Irecv(message(parts[rank]), rank, TAG) for rank in others]
    _complete(arriving + [comm.Isend(message(mine), rank, TAG) for rank in others])


def _others(comm: MPI.Intracomm) -> list[int]:
    return [rank for rank in range(comm.size) if rank != comm.rank]


def _complete(requests: list[MPI.Request]) -> None:
    try:
        wait_until(partial(MPI.Request.Testall, requests), float("inf"), "a large reduction")
    except BaseException:  # Ctrl-C; MPI still uses the memory
        _wait_for_all(requests)
        raise


def _wait_for_all(requests: list[MPI.Request], statuses: list[MPI.Status] | None = None) -> None:
    """Wait also for those after one that fails, where MPI returns at once: it still uses their memory."""
    try:
        MPI.Request.Waitall(requests, statuses)
    except MPI.Exception:
        for request in requests:
            with suppress(MPI.Exception):
                request.Wait()
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


def all_reduce_sparse(comm: MPI.Intracomm, tensor: torch.Tensor) -> None:
    """Replace the COO tensor by the sum over all ranks, coalesced; each rank may have other coordinates."""
    part = tensor.detach().coalesce()
    counts = torch.empty(comm.size, dtype=torch.int64, device="cpu")
    all_gather_single(comm, counts, torch.tensor([part.values().shape[0]], device="cpu"))
    lengths = counts.tolist()
    values = [part.values().new_empty((length, *part.values().shape[1:])) for length in lengths]
    # One row for each element, so that each rank's coordinates are contiguous.
    coordinates = [part.indices().new_empty((length, part.sparse_dim())) for length in lengths]
    all_gather(comm, values, part.values())
    all_gather(comm, coordinates, part.indices().t().contiguous())
    total = torch.sparse_coo_tensor(
        torch.cat(coordinates).t(),
        torch.cat(values),
        tensor.shape,
        device=tensor.device,
        check_invariants=True,
    )
    with torch.no_grad():  # not detach(), which copies what copy_ replaces in a sparse tensor
        tensor.copy_(total.coalesce())
