"""Collectives of tensors that MPI can use as they are, called by a thread that blocks: nearly every call.

A function returns the note of order.py, the function to call and its arguments, or None if a tensor needs
more: a copy, a GPU's stream, several pieces, or an error that says what is wrong with it. collectives.py does
that; its messages are the same, because other ranks may need them for the same collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import buffers
from .arguments import PLAIN
from .buffers import BY_SIZE
from .library import MPI
from .order import OF_NAME
from .reduction import done_by_mpi

Tensors = Sequence[torch.Tensor]
Call = tuple[Any, ...]


_BROADCAST, _ALL_REDUCE, _ALL_GATHER, _REDUCE_SCATTER, _ALL_TO_ALL = (
    OF_NAME[name]
    for name in ("broadcast", "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all")
)

_strided, _memory_at = torch.strided, MPI.buffer.fromaddress


def broadcast(comm: MPI.Intracomm, tensors: Tensors, root: int) -> Call | None:
    """Send the root's elements to every rank."""
    if len(tensors) != 1 or not (memory := _memory(tensors[0])) or not 0 <= root < comm.size:
        return None
    return _BROADCAST | root << 28 | memory[0].nbytes, comm.Bcast, memory, root


def all_reduce(comm: MPI.Intracomm, tensors: Tensors, operation: Any) -> Call | None:
    """Reduce, if MPI itself has the operation for the type."""
    if len(tensors) != 1 or (alone := done_by_mpi(operation.op.value, tensors[0].dtype)) is None:
        return None
    memory = _memory(tensors[0], alone.datatype)
    if not memory:
        return None
    number = _ALL_REDUCE | alone.number | memory[0].nbytes
    return number, comm.Allreduce, MPI.IN_PLACE, memory, alone.op


def all_gather_single(comm: MPI.Intracomm, output: torch.Tensor, tensor: torch.Tensor) -> Call | None:
    """Gather every rank's part; it may already be at its place in `output`, as FSDP's is."""
    whole, part = _memory(output), _memory(tensor)
    if not whole or not part or whole[1] != part[1] * comm.size or output.dtype != tensor.dtype:
        return None
    room, mine = whole[0], part[0]
    whole[1] = part[1]  # MPI counts what comes from each rank
    if mine.address == room.address + comm.rank * mine.nbytes:
        return _ALL_GATHER | mine.nbytes, comm.Allgather, MPI.IN_PLACE, whole
    return _ALL_GATHER | mine.nbytes, comm.Allgather, part, whole


def reduce_scatter_single(
    comm: MPI.Intracomm, outputs: Tensors, tensors: Tensors, operation: Any
) -> Call | None:
    """Reduce, if MPI itself has the operation, and keep this rank's part."""
    if len(tensors) != 1 or len(outputs) != 1 or outputs[0].dtype != tensors[0].dtype:
        return None
    if (alone := done_by_mpi(operation.op.value, tensors[0].dtype)) is None:
        return None
    part, whole = _memory(outputs[0], alone.datatype), _memory(tensors[0], alone.datatype)
    if not whole or not part or whole[1] != part[1] * comm.size or _overlap(part[0], whole[0]):
        return None
    whole[1] = part[1]
    number = _REDUCE_SCATTER | alone.number | whole[0].nbytes
    return number, comm.Reduce_scatter_block, whole, part, alone.op


def all_to_all_single(comm: MPI.Intracomm, output: torch.Tensor, tensor: torch.Tensor) -> Call | None:
    """Exchange equal parts."""
    received, sent, size = _memory(output), _memory(tensor), comm.size
    if not received or not sent or received[1] != sent[1] or output.dtype != tensor.dtype:
        return None
    if not (output.dim() and tensor.dim()) or len(output) % size or len(tensor) % size:
        return None
    if _overlap(received[0], sent[0]):
        return None
    received[1] = sent[1] = sent[1] // size
    return _ALL_TO_ALL | sent[0].nbytes, comm.Alltoall, sent, received


def _memory(tensor: torch.Tensor, datatype: MPI.Datatype | None = None) -> list[Any] | None:
    """Return MPI's description of the elements of `tensor`; None if it needs more, or has too many bytes."""
    if type(tensor) not in PLAIN or not tensor.is_cpu or tensor.layout is not _strided:
        return None
    if not tensor.is_contiguous() or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
        return None
    count, size = tensor.numel(), tensor.element_size()
    if count * size > buffers.REDUCED_AT_ONCE:
        return None
    return [_memory_at(tensor.data_ptr(), count * size), count, datatype or BY_SIZE[size]]


def _overlap(one: MPI.buffer, other: MPI.buffer) -> bool:
    return one.address < other.address + other.nbytes and other.address < one.address + one.nbytes
