"""Reductions of elements that MPI cannot add: fp16, bf16 and the 8-bit floats.

MPI calls back for each part that arrives, and torch adds it up in the precision of the elements, as Gloo
does. Neither Open MPI nor MPICH has bf16. Open MPI 5.0.11 has an fp16 of its own, which the callback
replaces: docs/mpi-backend.md has the times of both.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

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
    Ctrl-C, would end the job: mpi4py calls MPI_Abort. Instead, the elements become NaN on all ranks, and
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
