"""Gradients of half the size on the wire: `--compress fp16` or `bf16`.

MPI 4 knows no bfloat16, and both Open MPI and MPICH add fp16 several times slower than fp32 on a CPU. So MPI
is told that these are 16-bit integers, and calls torch to add them. Sums are rounded to the half type at each
of the log2(n) or more steps, so the result depends a little on the number of ranks. It pays where the network
is slow; on one machine the conversion costs more than it saves (docs/train.md has figures).
"""

from __future__ import annotations

from typing import Any

import torch
from mpi4py import MPI

WIRE = {"fp16": torch.float16, "bf16": torch.bfloat16}


def reduction(wire: torch.dtype | None) -> MPI.Op:
    """Return MPI's sum, or for a half type one that torch computes (MPI 4.1, section 6.9.5)."""
    if wire is None:
        return MPI.SUM

    def add(came: Any, there: Any, _datatype: MPI.Datatype) -> None:
        total = torch.frombuffer(there, dtype=wire)
        total += torch.frombuffer(came, dtype=wire)

    return MPI.Op.Create(add, commute=True)
