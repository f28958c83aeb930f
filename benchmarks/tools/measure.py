"""Runs one operation on this rank and judges the result."""

from __future__ import annotations

import torch

from muster.deploy.features.bench.programs.outcomes import REFUSED, RIGHT, WRONG, first_line
from muster.train.job.hardware import wait_for_gpu

from .operations import Operation, World


def run(operation: Operation, world: World) -> tuple[str, str]:
    """Run `operation` on this rank; returns RIGHT, WRONG or REFUSED, and a wrong result or the error."""
    try:
        pairs = operation.run(world)
        wait_for_gpu(world.device)
    except Exception as error:  # noqa: BLE001 - a backend may raise anything; its message is the result
        return REFUSED, first_line(error)
    for got, right in pairs:
        if not _equal(got, right):
            return WRONG, f"{got.tolist()}, not {right.tolist()}"
    return RIGHT, ""


def _equal(got: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare with a tolerance that suits the precision of the type."""
    exact = not got.dtype.is_floating_point or torch.finfo(got.dtype).bits >= 32
    kind = torch.complex128 if got.is_complex() else torch.float64
    tolerance = 1e-6 if exact else 1e-2
    return torch.allclose(got.cpu().to(kind), right.cpu().to(kind), rtol=tolerance, atol=0)
