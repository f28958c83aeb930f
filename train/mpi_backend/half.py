"""Reductions of elements that MPI cannot add: fp16, bf16 and the 8-bit floats.

MPI calls back for each part that arrives, and torch adds it up, as Gloo does, 16 bits in their own precision.
Neither Open MPI nor MPICH has bf16; what is known of Open MPI's own fp16 is in docs/mpi-backend.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ..job.mpi_world import MPI

Combine = Callable[..., torch.Tensor]

COMBINE: dict[str, Combine] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}


@cache
def callback(kind: str, dtype: torch.dtype) -> MPI.Op:
    """Return the operation for two parts of elements of `dtype`; it lives as long as MPI."""
    combine = COMBINE[kind]
    # torch has no arithmetic for 8-bit floats.
    wide = torch.float32 if dtype.itemsize == 1 else dtype

    def call(theirs: MPI.buffer, mine: MPI.buffer, _: MPI.Datatype) -> None:
        part, into = torch.frombuffer(theirs, dtype=dtype), torch.frombuffer(mine, dtype=dtype)
        into.copy_(combine(into.to(wide), part.to(wide)))

    def call_in_place(theirs: MPI.buffer, mine: MPI.buffer, _: MPI.Datatype) -> None:
        into = torch.frombuffer(mine, dtype=dtype)
        combine(into, torch.frombuffer(theirs, dtype=dtype), out=into)

    chosen = call_in_place if wide == dtype else call

    def call_unless_empty(theirs: MPI.buffer, mine: MPI.buffer, datatype: MPI.Datatype) -> None:
        """Open MPI cuts a short vector into empty parts too, which torch.frombuffer refuses."""
        if len(mine):
            chosen(theirs, mine, datatype)

    operation: Any = call_unless_empty
    return MPI.Op.Create(operation, commute=True)
