"""torch's reduce operations in terms of MPI's, for every dtype.

fp16, bf16 and the 8-bit floats are added by torch: MPI calls back for each part that arrives, and torch adds
it up in the precision of the elements, as Gloo does. Neither Open MPI nor MPICH has bf16. Open MPI 5.0.11 has
an fp16 of its own, which the callback replaces: docs/mpi-backend.md has the times of both.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch.distributed import ReduceOp

from .library import MPI

_COMBINE: dict[str, Callable[..., torch.Tensor]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}


_thread = threading.local()  # `error`: the exception in a callback of this thread


def raise_error() -> None:
    """Raise the exception of a callback in this thread, if there was one, after MPI's call has returned."""
    error: BaseException | None = getattr(_thread, "error", None)
    if error is not None:
        _thread.error = None
        raise error


@cache
def callback(name: str, dtype: torch.dtype) -> MPI.Op:
    """Return the MPI operation that combines two parts of elements of `dtype`; it is never freed.

    Raises ValueError if torch does not have this operation for `dtype`. An exception in the callback, such as
    Ctrl-C, would end the job: mpi4py calls MPI_Abort. Instead, the elements become NaN, and
    `raise_error` raises it.
    """
    combine = _COMBINE.get(name)
    if combine is None or not dtype.is_floating_point:
        raise ValueError(f"reduce operation {name} is not defined for {dtype}")
    # torch has no arithmetic for 8-bit floats.
    wide = torch.float32 if dtype.itemsize == 1 else dtype

    def widened(theirs: Any, mine: Any) -> None:
        part, into = torch.frombuffer(theirs, dtype=dtype), torch.frombuffer(mine, dtype=dtype)
        into.copy_(combine(into.to(wide), part.to(wide)))

    def in_place(theirs: Any, mine: Any) -> None:
        into = torch.frombuffer(mine, dtype=dtype)
        combine(into, torch.frombuffer(theirs, dtype=dtype), out=into)

    chosen = in_place if wide == dtype else widened
    try:
        chosen(bytearray(dtype.itemsize), bytearray(dtype.itemsize))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"reduce operation {name} is not defined for {dtype}") from error

    def operation(theirs: MPI.buffer, mine: MPI.buffer, _: MPI.Datatype) -> None:
        if not len(mine):  # Open MPI also passes empty parts of a short vector; torch.frombuffer refuses them
            return
        try:
            chosen(theirs, mine)
        except BaseException as error:  # noqa: BLE001 - mpi4py would end the job
            _thread.error = error
            ctypes.memset(mine.address, 0xFF, mine.nbytes)

    function: Any = operation
    return MPI.Op.Create(function, commute=True)


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
_NAMES = {
    kind.value: name for name, kind in ReduceOp.RedOpType.__members__.items()
}  # op.name searches for it each time
FIRST_BIT = 44
_ALL_NAMES = sorted(_NAMES.values())
_ALL_TYPES = sorted({str(kind) for kind in vars(torch).values() if isinstance(kind, torch.dtype)})
# Of numbers, and of booleans, for which only the logical operations are defined (MPI 4.1, section 6.9.2).
_OPERATIONS = {
    "SUM": (MPI.SUM, MPI.LOR),
    "PRODUCT": (MPI.PROD, MPI.LAND),
    "MIN": (MPI.MIN, MPI.LAND),
    "MAX": (MPI.MAX, MPI.LOR),
    "BAND": (MPI.BAND, MPI.LAND),
    "BOR": (MPI.BOR, MPI.LOR),
    "BXOR": (MPI.BXOR, MPI.LXOR),
}
_BY_CALLBACK = {1: MPI.BYTE, 2: MPI.INT16_T}


@dataclass(frozen=True, slots=True)
class Reduction:
    """The operation for MPI, and what is done to the elements before and after; `name` is torch's."""

    name: str
    op: MPI.Op
    datatype: MPI.Datatype
    on_host: bool = False
    """The elements must be in host memory: `op` is a callback, or `prepare` changes them."""
    factor: float | complex | None = None
    """Each rank's elements are multiplied by it before the sum."""
    average: bool = False
    accumulate: torch.dtype | None = None
    """The elements are converted to this dtype first, because their own cannot hold the sum."""
    number: int = 0
    """Stands for operation and dtype in the notes of order.py, from FIRST_BIT on."""

    @classmethod
    def of(cls, op: Any, dtype: torch.dtype) -> Reduction:
        """Return the reduction for `op`, a torch ReduceOp; raises ValueError if `dtype` lacks it."""
        name = _NAMES[op.op.value]
        if name == "AVG":
            return _average(dtype)
        if name == "PREMUL_SUM":
            return _multiplied(op.__getstate__()[1], dtype)  # torch shows the factor in no other way
        return plain(name, dtype)

    def prepare(self, flat: torch.Tensor, *, may_overwrite: bool) -> torch.Tensor:
        """Return this rank's elements as MPI adds them; changes `flat` only if it `may_overwrite` it."""
        if self.accumulate is not None:
            flat, may_overwrite = flat.to(self.accumulate), True
        if self.factor is not None:
            return flat.mul_(self.factor) if may_overwrite else flat.mul(self.factor)
        return flat

    def returned(self) -> None:
        """Raise what went wrong in torch's part of the sum, after the last call of MPI."""
        if self.on_host:
            raise_error()

    def conclude(self, flat: torch.Tensor, size: int) -> None:
        """Change the sum over `size` ranks into the result, in place."""
        if self.average:
            exact = flat.is_floating_point() or flat.is_complex()
            flat.div_(size, rounding_mode=None if exact else "trunc")


@cache
def done_by_mpi(operation: int, dtype: torch.dtype) -> Reduction | None:
    """Return the reduction for a value of torch's RedOpType, if MPI needs no work of torch's for it."""
    name = _NAMES[operation]
    try:
        reduction = plain(name, dtype) if name in _OPERATIONS else None
    except ValueError:
        return None
    return None if reduction is None or reduction.on_host else reduction


@cache
def _average(dtype: torch.dtype) -> Reduction:
    if dtype == torch.bool:
        raise ValueError(f"reduce operation AVG is not defined for {dtype}")
    wide = _sum_type(dtype)
    total = plain("SUM", wide or dtype)
    on_host = total.on_host or wide is not None
    number = _number("AVG", dtype)
    average = replace(total, name="AVG", average=True, accumulate=wide, on_host=on_host, number=number)
    return _tried(average, dtype)


def _multiplied(factor: Any, dtype: torch.dtype) -> Reduction:
    if not (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"reduce operation PREMUL_SUM is not defined for {dtype}")
    if isinstance(factor, torch.Tensor):
        if factor.numel() != 1:
            raise ValueError(f"the factor of PREMUL_SUM must be one number, not {factor.numel()}")
        factor = factor.item()
    wide = torch.float32 if dtype.itemsize == 1 else None  # torch has no arithmetic for 8-bit floats
    total = plain("SUM", wide or dtype)
    number = _number("PREMUL_SUM", dtype)
    multiplied = replace(
        total, name="PREMUL_SUM", factor=factor, accumulate=wide, on_host=True, number=number
    )
    return _tried(multiplied, dtype)


def _tried(reduction: Reduction, dtype: torch.dtype) -> Reduction:
    """Return `reduction`, if torch does what it asks before and after the sum; raises ValueError if not."""
    try:
        tensor = torch.zeros(1, dtype=dtype, device="cpu")
        total = reduction.prepare(tensor, may_overwrite=False)
        reduction.conclude(total, 2)
        fits = total.dtype == (reduction.accumulate or dtype)
        tensor.copy_(total if fits else tensor)
    except (RuntimeError, TypeError):
        fits = False
    if not fits:
        raise ValueError(f"reduce operation {reduction.name} is not defined for {dtype}")
    return reduction


def _sum_type(dtype: torch.dtype) -> torch.dtype | None:
    """Return a dtype that holds the sum where `dtype` may not: of two fp16 of 40000, or two int8 of 100."""
    if dtype == torch.float16 or (dtype.is_floating_point and dtype.itemsize == 1):
        return torch.float32
    whole = not (dtype.is_floating_point or dtype.is_complex)
    return torch.int64 if whole and dtype.itemsize < torch.int64.itemsize else None


@cache
def plain(name: str, dtype: torch.dtype) -> Reduction:
    """Return SUM, PRODUCT, MIN, MAX, BAND, BOR or BXOR; raises ValueError if `dtype` does not have it."""
    bits = name in {"BAND", "BOR", "BXOR"}
    order = name in {"MIN", "MAX"}
    number = _number(name, dtype)
    if (bits and (dtype.is_floating_point or dtype.is_complex)) or (order and dtype.is_complex):
        raise ValueError(f"reduce operation {name} is not defined for {dtype}")
    if dtype == torch.bool:
        return Reduction(name, _OPERATIONS[name][1], MPI.C_BOOL, number=number)
    if dtype in _DATATYPES:
        return Reduction(name, _OPERATIONS[name][0], _DATATYPES[dtype], number=number)
    kind = _BY_CALLBACK[dtype.itemsize]
    return Reduction(name, callback(name, dtype), kind, on_host=True, number=number)


def _number(name: str, dtype: torch.dtype) -> int:
    return (_ALL_NAMES.index(name) * len(_ALL_TYPES) + _ALL_TYPES.index(str(dtype))) << FIRST_BIT


def reduction_named(number: int) -> str:
    """Return what the `number` of a reduction stands for: "SUM float32"."""
    name, dtype = divmod(number >> FIRST_BIT, len(_ALL_TYPES))
    return f"{_ALL_NAMES[name]} {_ALL_TYPES[dtype].removeprefix('torch.')}"
