"""The cells of the table: every operation, with every type of tensor, on every device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from muster.train.job.backend import gpu_number

from .measure import run
from .operations import OPERATIONS, World

DTYPES = {
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f8": torch.float8_e4m3fn,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "c64": torch.complex64,
    "c128": torch.complex128,
    "bool": torch.bool,
}
HANGS, DIES = "hangs", "dies"  # in addition to the outcomes of measure.py


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination, by the names of its parts; `dtype` is a key of DTYPES, `device` cpu or cuda."""

    operation: str
    dtype: str
    device: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The outcome of a cell, of measure.py or HANGS or DIES, and the message of the backend."""

    cell: Cell
    outcome: str
    said: str


def all_cells(devices: Iterable[str]) -> list[Cell]:
    """Return every combination on `devices`; a barrier moves no tensor, so its type is not varied."""
    return [
        Cell(operation.name, dtype, device)
        for device in devices
        for operation in OPERATIONS
        for dtype in DTYPES
        if operation.name != "barrier" or dtype == "f32"
    ]


def measure(cell: Cell, rank: int, size: int, local_rank: int) -> tuple[str, str]:
    """Run a cell on this rank; returns its outcome and the message of the backend."""
    operation = next(operation for operation in OPERATIONS if operation.name == cell.operation)
    device = torch.device(cell.device)
    if device.type == "cuda":
        device = torch.device("cuda", gpu_number(local_rank))
    return run(operation, World(rank, size, device, DTYPES[cell.dtype]))
