"""Running one operation on this rank, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .operations import Operation, World

RIGHT, WRONG, REFUSED, BROKEN = "right", "wrong", "refused", "broken"


def run(operation: Operation, world: World) -> tuple[str, str]:
    """Run `operation` on this rank; returns RIGHT, WRONG or REFUSED, and what came out or was said."""
    try:
        pairs = operation.run(world)
        if world.device.type == "cuda":
            torch.cuda.synchronize(world.device)
    except Exception as error:  # noqa: BLE001 - a backend may raise anything; its words are the result
        return REFUSED, _first_line(error)
    for got, right in pairs:
        if not _equal(got, right):
            return WRONG, f"{got.tolist()}, not {right.tolist()}"
    return RIGHT, ""


def together(results: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return what the ranks' results, in rank order, make of the operation.

    Refused is what every rank refused. What some ranks refused while others took part is broken: it would
    have left a training hanging.
    """
    outcomes = {outcome for outcome, _ in results}
    if outcomes == {RIGHT}:
        return results[0]
    if outcomes == {REFUSED}:
        return results[0]
    rank = next(rank for rank, (outcome, _) in enumerate(results) if outcome != RIGHT)
    outcome, said = results[rank]
    return (WRONG if outcome == WRONG else BROKEN), f"rank {rank}: {said}"


def _equal(got: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare, with the few bits that half-precision types have in mind."""
    exact = not got.dtype.is_floating_point or torch.finfo(got.dtype).bits >= 32
    kind = torch.complex128 if got.is_complex() else torch.float64
    tolerance = 1e-6 if exact else 1e-2
    return torch.allclose(got.cpu().to(kind), right.cpu().to(kind), rtol=tolerance, atol=0)


def _first_line(error: Exception) -> str:
    """Return what a backend said, without the C++ file and line that gloo puts before it."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line.rpartition("] ")[2] if line.startswith("[") else line
