"""Reductions of elements that MPI cannot add: fp16, bf16 and the 8-bit floats.

MPI calls back for each part that arrives, and torch adds it up in the precision of the elements, as Gloo
does. Neither Open MPI nor MPICH has bf16. Open MPI 5.0.11 has an fp16 of its own, which the callback
replaces: docs/mpi-backend.md has the times of both.
"""

from __future__ import annotations

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


@cache
def callback(name: str, dtype: torch.dtype) -> MPI.Op:
    """Return the MPI operation that combines two parts of elements of `dtype`; it is never freed."""
    combine = _COMBINE[name]
    # torch has no arithmetic for 8-bit floats.
    wide = torch.float32 if dtype.itemsize == 1 else dtype

    def widened(theirs: MPI.buffer, mine: MPI.buffer) -> None:
        part, into = torch.frombuffer(theirs, dtype=dtype), torch.frombuffer(mine, dtype=dtype)
        into.copy_(combine(into.to(wide), part.to(wide)))

    def in_place(theirs: MPI.buffer, mine: MPI.buffer) -> None:
        into = torch.frombuffer(mine, dtype=dtype)
        combine(into, torch.frombuffer(theirs, dtype=dtype), out=into)

    chosen = in_place if wide == dtype else widened

    def operation(theirs: MPI.buffer, mine: MPI.buffer, _: MPI.Datatype) -> None:
        if len(mine):  # Open MPI also passes empty parts of a short vector; torch.frombuffer refuses them
            chosen(theirs, mine)

    function: Any = operation
    return MPI.Op.Create(function, commute=True)
