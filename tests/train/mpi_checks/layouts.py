"""Ranks whose tensors differ in layout: some take plain.py's way, others copy, in the same collective."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from muster.train.mpi_backend import collectives, process_group
from tests.train.mpi_checks.values import fold, me, of_all, of_rank, same, world

SIZES = (5, 40_000, 1_200_000)  # numbers in a column: in one message, in a large one, in several


def column(tensor: torch.Tensor, odd: int) -> torch.Tensor:
    """Return a copy of `tensor`, which is a column of a matrix on rank `odd`, and contiguous elsewhere."""
    if me() != odd:
        return tensor.clone()
    matrix = torch.zeros(*tensor.shape, 2, dtype=tensor.dtype)
    matrix[..., 0] = tensor
    return matrix[..., 0]


def room(count: int, odd: int) -> torch.Tensor:
    return column(torch.zeros(count), odd)


def rank_part(rank: int, count: int) -> torch.Tensor:
    return of_rank(rank, torch.float32, count)


def check_one_rank_has_another_layout_in_a_reduction() -> None:
    for count in SIZES:
        total = fold(torch.add, of_all(torch.float32, count * world()))
        for odd in range(world()):
            tensor = column(rank_part(me(), count * world()), odd)
            dist.all_reduce(tensor)
            same(tensor, total, count)
            tensor = column(rank_part(me(), count * world()), odd)
            dist.reduce(tensor, 1)
            same(tensor, total if me() == 1 else rank_part(me(), count * world()), count)
            part = room(count, odd)
            dist.reduce_scatter_tensor(part, rank_part(me(), count * world()))
            same(part, total[count * me() : count * (me() + 1)], count)


def check_one_rank_has_another_layout_in_an_exchange() -> None:
    for count in SIZES:
        every = [rank_part(rank, count) for rank in range(world())]
        for odd in range(world()):
            tensor = column(rank_part(me(), count), odd)
            dist.broadcast(tensor, 1)
            same(tensor, every[1], count)
            whole = room(count * world(), odd)
            dist.all_gather_into_tensor(whole, column(rank_part(me(), count), (odd + 1) % world()))
            same(whole, torch.cat(every), count)
            whole = room(count * world(), odd)
            dist.all_to_all_single(whole, rank_part(me(), count).repeat(world()))
            same(whole, torch.cat(every), count)
            rooms = [room(count, odd) for _ in range(world())]
            dist.gather(column(rank_part(me(), count), odd), rooms if me() == 1 else None, 1)
            same(torch.cat(rooms), torch.cat(every) if me() == 1 else torch.zeros(count * world()), count)
            part = room(count, odd)
            dist.scatter(part, [column(each, odd) for each in every] if me() == 1 else None, 1)
            same(part, every[me()], count)


def check_numbers_that_torch_negates_later() -> None:
    """Their memory has other numbers than the tensor."""
    tensor = torch._neg_view(-of_rank(me())) if me() == 0 else of_rank(me())
    dist.all_reduce(tensor)
    same(tensor.resolve_neg(), fold(torch.add, of_all()))


def check_a_call_of_plain_tensors_is_one_of_mpi() -> None:
    """The long way would be right, too, but slow."""
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        return  # it compares the calls of the ranks first
    with short_way_only():
        tensor, whole = torch.ones(4), torch.zeros(4 * world())
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, ReduceOp.MAX)
        dist.broadcast(tensor, 0)
        dist.all_gather_into_tensor(whole, tensor)
        dist.all_gather_into_tensor(whole, whole[4 * me() : 4 * me() + 4])
        dist.reduce_scatter_tensor(tensor, whole)
        dist.all_to_all_single(torch.zeros_like(whole), whole)


@contextmanager
def short_way_only() -> Iterator[None]:
    long_way = AssertionError("the long way")
    with (
        patch.object(process_group.BaseGroup, "_start", side_effect=long_way),
        patch.object(collectives, "stage_in", side_effect=long_way),
    ):
        yield
