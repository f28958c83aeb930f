"""What TORCH_DISTRIBUTED_DEBUG=DETAIL adds: it reports ranks that do not call the same collective."""

from __future__ import annotations

import torch
import torch.distributed as dist

from muster.train.mpi_backend import MismatchError
from tests.train.mpi_checks.mistakes import fails, goes_on
from tests.train.mpi_checks.values import me, same, world


def check_a_difference_at_the_end_of_a_long_list_is_found() -> None:
    tensors = [torch.ones(3, 4) for _ in range(59)] + [torch.ones(5 if me() == 1 else 6)]
    fails(lambda: dist.all_reduce_coalesced(tensors), MismatchError, "rank 1: all_reduce SUM float32[3, 4]")
    fails(lambda: dist.all_reduce_coalesced(tensors), MismatchError, "float32[3, 4], float32[5]")
    goes_on()


def check_a_difference_behind_what_travels_is_told() -> None:
    same_start = [torch.ones(1, 1) for _ in range(5000)]  # their description is longer than 64 KiB
    tensors = [*same_start, torch.ones(5 if me() == 1 else 6)]
    fails(
        lambda: dist.all_reduce_coalesced(tensors), MismatchError, "the ranks differ: rank 0: all_reduce SUM"
    )
    goes_on()


def check_tensors_of_several_types_are_the_same_on_all_ranks() -> None:
    """In a set their names would be in another order on each rank."""
    parts = [torch.ones(1, dtype=dtype) for dtype in (torch.float32, torch.int64, torch.float64, torch.int8)]
    wholes = [part.new_zeros(world()) for part in parts]
    with dist._coalescing_manager():
        for whole, part in zip(wholes, parts, strict=True):
            dist.all_gather_into_tensor(whole, part)
    for whole in wholes:
        same(whole, torch.ones_like(whole))


def check_different_roots_are_told() -> None:
    fails(
        lambda: dist.broadcast(torch.ones(1), src=int(me() == 1)), MismatchError, "rank 1: broadcast root 1"
    )
    goes_on()


def check_another_type_is_told() -> None:
    tensor = torch.ones(2, dtype=torch.float64 if me() == 1 else torch.float32)
    fails(lambda: dist.all_reduce(tensor), MismatchError, "rank 1: all_reduce SUM float64[2]")
    goes_on()
