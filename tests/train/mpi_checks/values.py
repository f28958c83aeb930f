"""Inputs that every rank can compute for all ranks, so that each knows the right answer on its own."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import torch
import torch.distributed as dist

# Of all tensors; the ranks may share a GPU. run.py makes it torch's default device.
DEVICE = torch.device(os.environ.get("CHECK_DEVICE", "cpu"))
HALF = (torch.float16, torch.bfloat16)
REAL = (torch.float32, torch.float64, *HALF)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
EVERY = (*REAL, *WHOLE, torch.bool, *COMPLEX)


def of_rank(rank: int, dtype: torch.dtype = torch.float32, *shape: int) -> torch.Tensor:
    """Return rank's tensor: small whole numbers, which every dtype adds and multiplies without rounding."""
    generator = torch.Generator().manual_seed(rank)
    numbers = torch.randint(0, 4, shape or (6, 5), generator=generator, device="cpu").to(DEVICE)
    if dtype.is_complex:
        return torch.complex(numbers.double(), numbers.flip(0).double()).to(dtype)
    return numbers.to(dtype)


def of_all(dtype: torch.dtype = torch.float32, *shape: int) -> list[torch.Tensor]:
    return [of_rank(rank, dtype, *shape) for rank in range(dist.get_world_size())]


def fold(
    combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], parts: list[torch.Tensor]
) -> torch.Tensor:
    return functools.reduce(combine, parts)


def drawn(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return random numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=dtype, generator=generator, device="cpu").to(DEVICE)


def mean(total: torch.Tensor) -> torch.Tensor:
    """Divide by the number of ranks; a GPU would multiply by its rounded inverse."""
    return (total.cpu() / world()).to(DEVICE)


def same(actual: torch.Tensor, expected: torch.Tensor, why: object = "") -> None:
    """Exactly equal; of one dtype and shape."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, msg=lambda text: f"{why}: {text}")


def me() -> int:
    return dist.get_rank()


def world() -> int:
    return dist.get_world_size()
