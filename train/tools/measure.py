"""Runs one operation on this rank and judges the result."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..job.hardware import wait_for_gpu
from .operations import Operation, World

RIGHT, WRONG, REFUSED, BROKEN = "right", "wrong", "refused", "broken"


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


def together(results: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return the outcome of the operation from the results of the ranks, in rank order.

    It is REFUSED if every rank refused it. If some ranks refused it while others took part it is BROKEN: a
    training would have hung.
    """
    outcomes = {outcome for outcome, _ in results}
    if outcomes == {RIGHT}:
        return results[0]
    if outcomes == {REFUSED}:
        return results[0]
    rank = next(rank for rank, (outcome, _) in enumerate(results) if outcome != RIGHT)
    outcome, message = results[rank]
    return (WRONG if outcome == WRONG else BROKEN), f"rank {rank}: {message}"


def _equal(got: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare with a tolerance that suits the precision of the type."""
    exact = not got.dtype.is_floating_point or torch.finfo(got.dtype).bits >= 32
    kind = torch.complex128 if got.is_complex() else torch.float64
    tolerance = 1e-6 if exact else 1e-2
    return torch.allclose(got.cpu().to(kind), right.cpu().to(kind), rtol=tolerance, atol=0)


def first_line(error: Exception) -> str:
    """Return a backend's message, without the C++ file and line that gloo puts before it."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line.rpartition("] ")[2] if line.startswith("[") else line
