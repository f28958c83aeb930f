"""Collectives of tensors that MPI can use as they are, called by a thread that blocks: nearly every call.

A function returns the note of order.py, the function to call and its arguments, or None if a tensor needs
more: a copy, a GPU's stream, several pieces, or an error that says what is wrong with it. collectives.py does
that; its messages are the same, because other ranks may need them for the same collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from . import buffers
from .arguments import PLAIN
from .buffers import BY_SIZE
from .collectives import TAG, check_size
from .library import MPI
from .order import OF_NAME
from .reduction import done_by_mpi

Tensors = Sequence[torch.Tensor]
Call = tuple[Any, ...]


class Ranks(NamedTuple):
    """A communicator, with what MPI would be asked for in every call."""

    comm: MPI.Intracomm
    me: int
    size: int


FEW = 2**16  # bytes of a part that is sent to, or received from, one rank after the other

_BROADCAST, _ALL_REDUCE, _REDUCE, _ALL_GATHER, _REDUCE_SCATTER, _ALL_TO_ALL, _GATHER, _SCATTER = (
    OF_NAME[name]
    for name in (
        *("broadcast", "all_reduce", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor"),
        *("all_to_all", "gather", "scatter"),
    )
)

_strided, _memory_at = torch.strided, MPI.buffer.fromaddress


def broadcast(to: Ranks, tensors: Tensors, root: int) -> Call | None:
    """Send the root's elements to every rank."""
    memory = _only(tensors)
    if not memory or not 0 <= root < to.size:
        return None
    return _BROADCAST | root << 28 | memory[0].nbytes, to.comm.Bcast, memory, root


def all_reduce(to: Ranks, tensors: Tensors, operation: Any) -> Call | None:
    """Reduce, if MPI itself has the operation for the type."""
    if len(tensors) != 1 or (alone := done_by_mpi(operation.op.value, tensors[0].dtype)) is None:
        return None
    memory = _memory(tensors[0], alone.datatype)
    if not memory:
        return None
    number = _ALL_REDUCE | alone.number | memory[0].nbytes
    return number, to.comm.Allreduce, MPI.IN_PLACE, memory, alone.op


def reduce(to: Ranks, tensors: Tensors, operation: Any, root: int) -> Call | None:
    """Reduce to the root, if MPI itself has the operation for the type."""
    if len(tensors) != 1 or (alone := done_by_mpi(operation.op.value, tensors[0].dtype)) is None:
        return None
    memory = _memory(tensors[0], alone.datatype)
    if memory is None or not 0 <= root < to.size:
        return None
    number = _REDUCE | alone.number | root << 28 | memory[0].nbytes
    if to.me == root:
        return number, to.comm.Reduce, MPI.IN_PLACE, memory, alone.op, root
    return number, to.comm.Reduce, memory, None, alone.op, root


def all_gather_single(to: Ranks, output: torch.Tensor, tensor: torch.Tensor) -> Call | None:
    """Gather every rank's part; it may already be at its place in `output`, as FSDP's is."""
    whole, part = _memory(output), _memory(tensor)
    if not whole or not part or whole[1] != part[1] * to.size or output.dtype != tensor.dtype:
        return None
    room, mine = whole[0], part[0]
    whole[1] = part[1]  # MPI counts what comes from each rank
    if mine.address == room.address + to.me * mine.nbytes:
        return _ALL_GATHER | mine.nbytes, to.comm.Allgather, MPI.IN_PLACE, whole
    return _ALL_GATHER | mine.nbytes, to.comm.Allgather, part, whole


def reduce_scatter_single(to: Ranks, outputs: Tensors, tensors: Tensors, operation: Any) -> Call | None:
    """Reduce, if MPI itself has the operation, and keep this rank's part."""
    if len(tensors) != 1 or len(outputs) != 1 or outputs[0].dtype != tensors[0].dtype:
        return None
    if (alone := done_by_mpi(operation.op.value, tensors[0].dtype)) is None:
        return None
    part, whole = _memory(outputs[0], alone.datatype), _memory(tensors[0], alone.datatype)
    if not whole or not part or whole[1] != part[1] * to.size or _overlap(part[0], whole[0]):
        return None
    whole[1] = part[1]
    number = _REDUCE_SCATTER | alone.number | whole[0].nbytes
    return number, to.comm.Reduce_scatter_block, whole, part, alone.op


def all_to_all_single(to: Ranks, output: torch.Tensor, tensor: torch.Tensor) -> Call | None:
    """Exchange equal parts."""
    received, sent, size = _memory(output), _memory(tensor), to.size
    if not received or not sent or received[1] != sent[1] or output.dtype != tensor.dtype:
        return None
    if not (output.dim() and tensor.dim()) or len(output) % size or len(tensor) % size:
        return None
    if _overlap(received[0], sent[0]):
        return None
    received[1] = sent[1] = sent[1] // size
    return _ALL_TO_ALL | sent[0].nbytes, to.comm.Alltoall, sent, received


def gather(to: Ranks, outputs: Sequence[Tensors], tensors: Tensors, root: int) -> Call | None:
    """Send a part to the root, which receives one from each rank."""
    mine = _memory(tensors[0], None, FEW)
    if mine is None or not 0 <= root < to.size:
        return None
    if to.me != root:
        return _GATHER | root << 28, to.comm.Send, mine, root, TAG
    rooms = _of_ranks(to, outputs, tensors[0])
    return (_GATHER | root << 28, _receive, to, rooms, mine) if rooms else None


def scatter(to: Ranks, outputs: Tensors, inputs: Sequence[Tensors], root: int) -> Call | None:
    """Receive a part from the root, which sends one to each rank."""
    room = _memory(outputs[0], None, FEW)
    if room is None or not 0 <= root < to.size:
        return None
    if to.me != root:
        return _SCATTER | root << 28, _receive_one, to, room, root
    parts = _of_ranks(to, inputs, outputs[0])
    return (_SCATTER | root << 28, _send, to, parts, room) if parts else None


def _memory(tensor: torch.Tensor, datatype: MPI.Datatype | None = None, most: int = 0) -> list[Any] | None:
    """Return MPI's description of the elements of `tensor`; None if it needs more, or has too many bytes."""
    if type(tensor) not in PLAIN or not tensor.is_cpu or tensor.layout is not _strided:
        return None
    if not tensor.is_contiguous() or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
        return None
    count, size = tensor.numel(), tensor.element_size()
    if count * size > (most or buffers.REDUCED_AT_ONCE):
        return None
    return [_memory_at(tensor.data_ptr(), count * size), count, datatype or BY_SIZE[size]]


def _only(tensors: Tensors) -> list[Any] | None:
    return _memory(tensors[0]) if len(tensors) == 1 else None


def _of_ranks(to: Ranks, lists: Sequence[Tensors], mine: torch.Tensor) -> list[list[Any]] | None:
    """Return the memory of each rank's tensor, if all have the type of `mine`, and this rank's its size."""
    if len(lists) != 1 or len(lists[0]) != to.size:
        return None
    memories, dtype = [], mine.dtype
    for tensor in lists[0]:
        memory = _memory(tensor, None, FEW)
        if memory is None or tensor.dtype is not dtype:
            return None
        memories.append(memory)
    return memories if memories[to.me][1] == mine.numel() else None


def _overlap(one: MPI.buffer, other: MPI.buffer) -> bool:
    return one.address < other.address + other.nbytes and other.address < one.address + one.nbytes


def _receive(to: Ranks, rooms: list[list[Any]], mine: list[Any]) -> None:
    """Receive a message from each other rank; one that is too short is an error when all have come."""
    me, status, short = to.me, MPI.Status(), []
    for rank, room in enumerate(rooms):
        memory = room[0]
        if rank == me:
            memory[:] = mine[0]
        else:
            to.comm.Recv(room, rank, TAG, status)
            if status.count != memory.nbytes:
                short.append((rank, status.count, memory.nbytes))
    for rank, received, expected in short:
        check_size(rank, received, expected)


def _receive_one(to: Ranks, room: list[Any], root: int) -> None:
    status = MPI.Status()
    to.comm.Recv(room, root, TAG, status)
    check_size(root, status.count, room[0].nbytes)


def _send(to: Ranks, parts: list[list[Any]], room: list[Any]) -> None:
    me = to.me
    for rank, part in enumerate(parts):
        if rank == me:
            room[0][:] = part[0]
        else:
            to.comm.Send(part, rank, TAG)
