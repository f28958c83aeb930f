"""Tensors as MPI needs them: an address, a count of elements, a datatype, and the streams of a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from .library import MPI

# Elements in one call: MPI counts in C ints, and Open MPI 5.0 does not have the larger counts of MPI 4.
LIMIT = 2**30

# Bytes in one reduction. Open MPI receives into temporary memory; for a large reduction the system maps and
# clears that memory in each call: 8193 page faults at 64 MiB and two ranks, none at 4 MiB.
REDUCED_AT_ONCE = 2**22

# To move data, MPI only needs the size of an element.
BY_SIZE = {1: MPI.BYTE, 2: MPI.INT16_T, 4: MPI.INT32_T, 8: MPI.INT64_T, 16: MPI.C_DOUBLE_COMPLEX}


def message(flat: torch.Tensor, datatype: MPI.Datatype | None = None) -> list[Any]:
    """Return MPI's description of the memory of `flat`, which is contiguous and must outlive the call.

    MPI reads and writes a GPU's memory outside of every stream, so what this thread has queued for the tensor
    is completed first.
    """
    if flat.is_cuda:
        torch.cuda.current_stream(flat.device).synchronize()
    memory = MPI.buffer.fromaddress(flat.data_ptr(), flat.nbytes)
    return [memory, flat.numel(), datatype or BY_SIZE[flat.element_size()]]


def pieces(flat: torch.Tensor, most: int = 0) -> Sequence[torch.Tensor]:
    """Split `flat` into one or more views of at most `most` elements (0: LIMIT)."""
    most = min(most or LIMIT, LIMIT)
    return (flat,) if flat.numel() <= most else flat.split(most)


def bytes_received(status: MPI.Status) -> int:
    """Return the size of the message that `status` is of.

    Not by Get_count: Open MPI 5.0 and 4.1 count in a C int there, and a message of 2 GiB has no count. mpi4py
    calls MPI_Get_elements_x for Get_elements, which counts in 64 bits.
    """
    return int(status.Get_elements(MPI.BYTE))


def stage_in(tensor: torch.Tensor, *, filled: bool = True, on_host: bool = False) -> torch.Tensor:
    """Return the elements as a flat, contiguous tensor in memory that MPI can use.

    This is `tensor` itself where its layout allows that, else a copy, which has the elements if `filled`;
    `stage_out` copies the result back. A GPU's tensor is copied to pinned host memory, unless this MPI is
    CUDA-aware and `on_host` is false.
    """
    if tensor.requires_grad:
        tensor = tensor.detach()
    usable = tensor.is_cpu or (tensor.is_cuda and not on_host and mpi_is_cuda_aware())
    if usable and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor if tensor.dim() == 1 else tensor.view(-1)
    copy = host_memory(tensor.shape, tensor)
    if filled:
        copy.copy_(tensor)
    return copy.view(-1)


def host_memory(shape: Sequence[int], like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return new host memory, for copies to and from the tensor `like`: pinned if that is on a GPU.

    The program may have another default device.
    """
    return torch.empty(shape, dtype=dtype or like.dtype, device="cpu", pin_memory=like.is_cuda)


def stage_out(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Copy `flat` into `tensor`, with its shape and dtype, unless `flat` is the memory of `tensor`."""
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


def overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two flat tensors share memory, which MPI forbids for input and output."""
    one, other = first.data_ptr(), second.data_ptr()
    return one < other + second.nbytes and other < one + first.nbytes


@cache
def mpi_is_cuda_aware() -> bool:
    """Return what MPIX_Query_cuda_support says, which Open MPI and its relatives have; else False."""
    query = getattr(ctypes.CDLL(MPI.__file__), "MPIX_Query_cuda_support", None)
    return query is not None and query() == 1


def stream_event(device: torch.device) -> torch.cuda.Event:
    """Return an event of this thread's stream on `device`: complete when all that is queued there is."""
    with torch.cuda.device(device):
        event = torch.cuda.Event()
        event.record()
    return event


def gpus_of(tensors: Sequence[Any]) -> list[int | str | torch.device]:
    """Return the GPUs of the tensors in a list, or in lists in it."""
    flat = [each for one in tensors for each in (one if isinstance(one, list) else [one])]
    return [*dict.fromkeys(each.device for each in flat if each.device.type == "cuda")]
