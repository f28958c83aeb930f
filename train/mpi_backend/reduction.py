"""torch's reduce operations as MPI's, for every dtype."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch.distributed import ReduceOp

from ..job.mpi_world import MPI
from . import half

_DATATYPES = {
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.int8: MPI.INT8_T,
    torch.int16: MPI.INT16_T,
    torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T,
    torch.uint8: MPI.UINT8_T,
    torch.uint16: MPI.UINT16_T,
    torch.uint32: MPI.UINT32_T,
    torch.uint64: MPI.UINT64_T,
    torch.bool: MPI.C_BOOL,
    torch.complex64: MPI.C_FLOAT_COMPLEX,
    torch.complex128: MPI.C_DOUBLE_COMPLEX,
}
_NAMES = {kind.value: name for name, kind in ReduceOp.RedOpType.__members__.items()}  # .name looks for it
_OPERATIONS = {
    "SUM": MPI.SUM,
    "PRODUCT": MPI.PROD,
    "MIN": MPI.MIN,
    "MAX": MPI.MAX,
    "BAND": MPI.BAND,
    "BOR": MPI.BOR,
    "BXOR": MPI.BXOR,
}
# MPI 4.1, section 6.9.2: arithmetic is not defined for booleans, logic is.
_OF_BOOLEANS = {
    "SUM": MPI.LOR,
    "PRODUCT": MPI.LAND,
    "MIN": MPI.LAND,
    "MAX": MPI.LOR,
    "BAND": MPI.LAND,
    "BOR": MPI.LOR,
    "BXOR": MPI.LXOR,
}
_BY_CALLBACK = {1: MPI.BYTE, 2: MPI.INT16_T}


@dataclass(frozen=True, slots=True)
class Reduction:
    """What MPI is asked to do, and what is left to do before and after; `name` is torch's."""

    name: str
    op: MPI.Op
    datatype: MPI.Datatype
    on_host: bool = False  # the operation is our own and cannot read a GPU's memory
    factor: float | torch.Tensor | None = None
    average: bool = False

    @classmethod
    def of(cls, op: Any, dtype: torch.dtype) -> Reduction:
        """Return torch's `op`, a ReduceOp; raises ValueError where it is not defined for `dtype`."""
        name = _NAMES[op.op.value]
        if name == "AVG":
            return _average(dtype)
        if name == "PREMUL_SUM":
            return replace(_plain("SUM", dtype), factor=op.__getstate__()[1])
        return _plain(name, dtype)

    def prepare(self, flat: torch.Tensor) -> None:
        """Do to this rank's elements what comes before MPI adds them up."""
        if self.factor is not None:
            flat.mul_(self.factor)

    def conclude(self, flat: torch.Tensor, size: int) -> None:
        """Do to the result of `size` ranks what is left after MPI."""
        if self.average:
            if flat.is_floating_point() and flat.itemsize == 1:  # which torch cannot divide
                flat.copy_(flat.float().div_(size))
                return
            whole = not (flat.is_floating_point() or flat.is_complex())
            flat.div_(size, rounding_mode="trunc" if whole else None)


@cache
def _average(dtype: torch.dtype) -> Reduction:
    if dtype == torch.bool:
        raise ValueError(f"reduce operation AVG is not defined for {dtype}")
    return replace(_plain("SUM", dtype), name="AVG", average=True)


@cache
def _plain(name: str, dtype: torch.dtype) -> Reduction:
    bits = name in {"BAND", "BOR", "BXOR"}
    order = name in {"MIN", "MAX"}
    if (bits and (dtype.is_floating_point or dtype.is_complex)) or (order and dtype.is_complex):
        raise ValueError(f"reduce operation {name} is not defined for {dtype}")
    if dtype == torch.bool:
        return Reduction(name, _OF_BOOLEANS[name], MPI.C_BOOL)
    if dtype in _DATATYPES:
        return Reduction(name, _OPERATIONS[name], _DATATYPES[dtype])
    return Reduction(name, half.callback(name, dtype), _BY_CALLBACK[dtype.itemsize], on_host=True)
