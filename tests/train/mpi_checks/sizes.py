"""Reductions of large tensors: of several pieces, which do not divide among the ranks.

What counts as large is less here, so that the checks take less time.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from muster.train.mpi_backend import buffers, collectives
from tests.train.mpi_checks.values import fold, me, mean, of_all, of_rank, same, world

COUNT = 2**17 + 5  # elements
SUMS = (torch.float32, torch.bfloat16, torch.int8, torch.complex64)


@contextmanager
def less_is_large() -> Iterator[None]:
    few = patch.object(buffers, "REDUCED_AT_ONCE", 2**15)  # plain.py's way ends there
    with few, patch.multiple(collectives, LARGE=2**16, AT_ONCE=2**17):
        yield


@less_is_large()
def check_large_sums() -> None:
    for dtype in SUMS:
        tensor = of_rank(me(), dtype, COUNT)
        dist.all_reduce(tensor)
        same(tensor, fold(torch.add, of_all(dtype, COUNT)), dtype)


@less_is_large()
def check_a_large_average_and_a_large_maximum() -> None:
    average, most = of_rank(me(), torch.float32, COUNT), of_rank(me(), torch.float16, COUNT)
    works = [dist.all_reduce(average, ReduceOp.AVG, async_op=True), dist.all_reduce(most, ReduceOp.MAX)]
    for work in works:
        if work is not None:
            work.wait()
    same(average, mean(fold(torch.add, of_all(torch.float32, COUNT))))
    same(most, fold(torch.maximum, of_all(torch.float16, COUNT)))


@less_is_large()
def check_large_sums_of_which_each_rank_keeps_a_part() -> None:
    for dtype in SUMS:
        given = of_rank(me(), dtype, COUNT * world())
        before, part = given.clone(), torch.empty(COUNT, dtype=dtype)
        dist.reduce_scatter_tensor(part, given)
        whole = fold(torch.add, of_all(dtype, COUNT * world()))
        same(part, whole[me() * COUNT : (me() + 1) * COUNT], dtype)
        same(given, before)


@less_is_large()
def check_groups_that_share_a_rank_have_memory_of_their_own() -> None:
    groups = [dist.new_group(), dist.new_group()]
    tensors = [of_rank(me(), torch.float32, COUNT) * (number + 1) for number in range(2)]
    works = [
        dist.all_reduce(tensor, group=group, async_op=True)
        for tensor, group in zip(tensors, groups, strict=True)
    ]
    for work in works:
        work.wait()
    total = fold(torch.add, of_all(torch.float32, COUNT))
    same(tensors[0], total)
    same(tensors[1], total * 2)
    for group in groups:
        dist.destroy_process_group(group)


@less_is_large()
def check_ranks_of_one_host_reduce_large_tensors_by_messages() -> None:
    names: list[str] = [""] * world()
    dist.all_gather_object(names, platform.node())
    with patch.object(collectives, "wait_for_all_ranks") as before_mpi:
        dist.all_reduce(of_rank(me(), torch.float32, COUNT))
        dist.reduce_scatter_tensor(torch.empty(COUNT), of_rank(me(), torch.float32, COUNT * world()))
    assert before_mpi.called == (len(set(names)) > 1), names


def check_ranks_of_several_hosts_leave_large_tensors_to_mpi() -> None:
    with patch.object(collectives, "_suits_messages", return_value=False):
        check_large_sums()
        check_large_sums_of_which_each_rank_keeps_a_part()
