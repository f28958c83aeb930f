"""Tensors as MPI sees them: memory, a count, and a datatype of the element's size."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from ..job.mpi_world import MPI

# Elements in one call: MPI counts in C ints, and Open MPI 5.0 has none of MPI 4's larger ones.
LIMIT = 2**30

# Bytes in one reduction. Open MPI puts what arrives into memory of its own; that of a large reduction the
# system maps and clears anew in each call: 8193 page faults at 64 MiB and two ranks, none in 4 MiB at a time.
REDUCED_AT_ONCE = 2**22

# To move data, MPI need only know how large an element is.
_BY_SIZE = {1: MPI.BYTE, 2: MPI.INT16_T, 4: MPI.INT32_T, 8: MPI.INT64_T, 16: MPI.C_DOUBLE_COMPLEX}


def message(flat: torch.Tensor, datatype: MPI.Datatype | None = None) -> list[Any]:
    """Describe the memory of `flat`, contiguous, to MPI; the tensor must outlive the call."""
    memory = MPI.buffer.fromaddress(flat.data_ptr(), flat.nbytes)
    return [memory, flat.numel(), datatype or _BY_SIZE[flat.element_size()]]


def pieces(flat: torch.Tensor, most: int | None = None) -> Sequence[torch.Tensor]:
    """Cut `flat` into views of `most` elements, else LIMIT, at most; at least one, which may be empty."""
    most = min(most or LIMIT, LIMIT)
    return (flat,) if flat.numel() <= most else flat.split(most)


def land(tensor: torch.Tensor, *, filled: bool = True, on_host: bool = False) -> torch.Tensor:
    """Return the elements flat and contiguous, where MPI reaches them: in place if they are, else a copy.

    The copy has the elements if `filled`; what MPI leaves in it goes home with `bring_back`. Memory of a GPU
    is copied to pinned memory, unless this MPI takes it as it is and nobody needs it `on_host`.
    """
    tensor = tensor.detach()
    in_reach = tensor.is_cpu or (tensor.is_cuda and not on_host and takes_gpu_memory())
    if in_reach and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
        return tensor if tensor.dim() == 1 else tensor.view(-1)
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    if filled:
        copy.copy_(tensor)
    return copy.view(-1)


def bring_back(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Put what MPI wrote into `flat` where it belongs, unless `land` found `tensor` good as it was."""
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


@cache
def takes_gpu_memory() -> bool:
    """Whether this MPI is CUDA-aware: MPIX_Query_cuda_support, an extension of Open MPI and its kin."""
    query = getattr(ctypes.CDLL(MPI.__file__), "MPIX_Query_cuda_support", None)
    return query is not None and query() == 1
