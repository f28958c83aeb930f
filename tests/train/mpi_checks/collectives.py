"""Every collective, every dtype, every layout."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import ReduceOp

from tests.train.mpi_checks.values import (
    COMPLEX,
    EVERY,
    REAL,
    WHOLE,
    fold,
    me,
    mean,
    of_all,
    of_rank,
    same,
    world,
)

ARITHMETIC = {
    ReduceOp.SUM: torch.add,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
}
BITS = {ReduceOp.BAND: torch.bitwise_and, ReduceOp.BOR: torch.bitwise_or, ReduceOp.BXOR: torch.bitwise_xor}
# torch adds booleans as logic does, but has no maximum of them by these names.
LOGIC = {
    ReduceOp.SUM: torch.logical_or,
    ReduceOp.PRODUCT: torch.logical_and,
    ReduceOp.MIN: torch.logical_and,
    ReduceOp.MAX: torch.logical_or,
    **BITS,
}


def operations(dtype: torch.dtype) -> dict[Any, Any]:
    if dtype == torch.bool:
        return LOGIC
    if dtype in COMPLEX:
        return {ReduceOp.SUM: torch.add}
    return ARITHMETIC | (BITS if dtype in WHOLE else {})


def check_all_reduce_of_every_dtype_and_operation() -> None:
    for dtype in EVERY:
        for op, combine in operations(dtype).items():
            tensor = of_rank(me(), dtype)
            dist.all_reduce(tensor, op)
            same(tensor, fold(combine, of_all(dtype)), (dtype, op))


def check_a_caller_that_waits_runs_a_collective_itself() -> None:
    group = dist.new_group()
    before = threading.active_count()
    dist.all_reduce(torch.ones(2), group=group)
    dist.all_gather_into_tensor(torch.empty(world()), torch.ones(1), group=group)
    dist.barrier(group)
    assert threading.active_count() == before
    dist.all_reduce(torch.ones(2), group=group, async_op=True).wait()
    assert threading.active_count() == before + 1
    dist.destroy_process_group(group)


def check_blocking_and_asynchronous_callers_share_a_large_collective() -> None:
    tensor = torch.full((3 * 2**20 + 1,), me() + 1.0)  # 12 MiB, in pieces of 4
    work = dist.all_reduce(tensor, async_op=me() > 0)
    if work is not None:
        work.wait()
    assert torch.equal(tensor, torch.full_like(tensor, world() * (world() + 1) / 2))


def check_average() -> None:
    for dtype in (*REAL, torch.int32):
        tensor = of_rank(me(), dtype)
        dist.all_reduce(tensor, ReduceOp.AVG)
        total = fold(torch.add, of_all(dtype))
        same(tensor, total // world() if dtype == torch.int32 else mean(total), dtype)


def check_premultiplied_sum() -> None:
    for dtype in REAL:
        tensor = of_rank(me(), dtype)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        same(tensor, fold(torch.add, of_all(dtype)) * 0.5, dtype)
        kept = of_rank(me(), dtype)
        dist.reduce(kept, 0, dist._make_nccl_premul_sum(0.5))
        same(kept, fold(torch.add, of_all(dtype)) * 0.5 if me() == 0 else of_rank(me(), dtype), dtype)


def check_eight_bit_floats_are_added() -> None:
    tensor = of_rank(me()).to(torch.float8_e5m2)
    dist.all_reduce(tensor)
    same(tensor.float(), fold(torch.add, of_all()).to(torch.float8_e5m2).float())


def check_what_is_not_defined_is_refused_and_leaves_the_tensor_as_it_is() -> None:
    refused: list[tuple[Any, torch.dtype, str]] = [
        (ReduceOp.BAND, torch.float32, "BAND is not defined for torch.float32"),
        (ReduceOp.BXOR, torch.bfloat16, "BXOR is not defined for torch.bfloat16"),
        (ReduceOp.AVG, torch.bool, "AVG is not defined for torch.bool"),
        (dist._make_nccl_premul_sum(0.5), torch.int32, "PREMUL_SUM is not defined for torch.int32"),
        (ReduceOp.MAX, COMPLEX[0], "all_reduce does not support"),  # torch itself refuses it
    ]
    for op, dtype, why in refused:
        tensor, said = of_rank(me(), dtype), ""
        try:
            dist.all_reduce(tensor, op)
        except ValueError as error:
            said = str(error)
        assert why in said, (why, said)
        same(tensor, of_rank(me(), dtype), why)


def check_tensors_that_are_not_contiguous() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = of_rank(me(), dtype).t()
        dist.all_reduce(tensor)
        same(tensor, fold(torch.add, of_all(dtype)).t(), dtype)
        every_other = of_rank(me(), dtype)[:, ::2]
        dist.broadcast(every_other, 1)
        same(every_other, of_rank(1, dtype)[:, ::2], dtype)
        columns = [torch.zeros(5, 6, dtype=dtype).t() for _ in range(world())]
        dist.all_gather(columns, of_rank(me(), dtype).t().contiguous().t())
        for rank, column in enumerate(columns):
            same(column, of_rank(rank, dtype), dtype)


def check_empty_tensors_and_single_numbers() -> None:
    dist.all_reduce(torch.empty(0, 3))
    dist.all_gather([torch.empty(0)] * world(), torch.empty(0))
    number = torch.tensor(me() + 1.0)
    dist.all_reduce(number)
    same(number, torch.tensor(world() * (world() + 1) / 2))


def check_a_parameter_can_be_broadcast() -> None:
    parameter = torch.nn.Parameter(of_rank(me()))
    dist.broadcast(parameter, 0)
    same(parameter.detach(), of_rank(0))


def check_broadcast_and_reduce_from_and_to_every_root() -> None:
    for dtype in EVERY:
        for root in range(world()):
            tensor = of_rank(me(), dtype)
            dist.broadcast(tensor, root)
            same(tensor, of_rank(root, dtype), dtype)
            if dtype not in (torch.bool, *COMPLEX):
                tensor = of_rank(me(), dtype)
                dist.reduce(tensor, root)
                if me() == root:
                    same(tensor, fold(torch.add, of_all(dtype)), dtype)


def check_a_reduction_keeps_the_tensors_of_the_other_ranks() -> None:
    tensor = of_rank(me())
    dist.reduce(tensor, 1)
    same(tensor, fold(torch.add, of_all()) if me() == 1 else of_rank(me()))


def check_all_gather() -> None:
    for dtype in EVERY:
        outputs = [torch.zeros(6, 5, dtype=dtype) for _ in range(world())]
        dist.all_gather(outputs, of_rank(me(), dtype))
        whole = torch.zeros(6 * world(), 5, dtype=dtype)
        dist.all_gather_into_tensor(whole, of_rank(me(), dtype))
        same(whole, torch.cat(outputs), dtype)
        same(whole, torch.cat(of_all(dtype)), dtype)


def check_all_gather_in_place_and_of_different_sizes() -> None:
    whole = torch.zeros(6 * world(), 5)
    mine = whole[6 * me() : 6 * me() + 6]
    mine.copy_(of_rank(me()))
    dist.all_gather_into_tensor(whole, mine)
    same(whole, torch.cat(of_all()))
    outputs = [torch.zeros(rank + 1) for rank in range(world())]
    dist.all_gather(outputs, torch.full((me() + 1,), float(me())))
    for rank, output in enumerate(outputs):
        same(output, torch.full((rank + 1,), float(rank)))


def check_gather_and_scatter() -> None:
    for dtype in EVERY:
        root = world() - 1
        buffer = [torch.zeros(6, 5, dtype=dtype) for _ in range(world())] if me() == root else None
        dist.gather(of_rank(me(), dtype), buffer, root)
        for rank, tensor in enumerate(buffer or ()):
            same(tensor, of_rank(rank, dtype), dtype)
        output = torch.zeros(6, 5, dtype=dtype)
        dist.scatter(output, of_all(dtype) if me() == 0 else None, 0)
        same(output, of_rank(me(), dtype), dtype)


def check_reduce_scatter() -> None:
    for dtype in (*REAL, *WHOLE):
        total = fold(torch.add, of_all(dtype, world() * 2, 5))
        mine = total[2 * me() : 2 * me() + 2]
        single, listed, average = (torch.zeros(2, 5, dtype=dtype) for _ in range(3))
        dist.reduce_scatter_tensor(single, of_rank(me(), dtype, world() * 2, 5))
        same(single, mine, dtype)
        dist.reduce_scatter(listed, list(of_rank(me(), dtype, world() * 2, 5).split(2)))
        same(listed, mine, dtype)
        if dtype in REAL:
            dist.reduce_scatter_tensor(average, of_rank(me(), dtype, world() * 2, 5), ReduceOp.AVG)
            same(average, mean(mine), dtype)


def check_reduce_scatter_of_different_sizes_and_in_place() -> None:
    parts = [torch.full((rank + 1,), float(me())) for rank in range(world())]
    output = torch.zeros(me() + 1)
    dist.reduce_scatter(output, parts)
    same(output, torch.full((me() + 1,), sum(range(world())) * 1.0))
    whole = of_rank(me(), torch.float32, world() * 2)
    dist.reduce_scatter_tensor(whole[2 * me() : 2 * me() + 2], whole)
    total = fold(torch.add, of_all(torch.float32, world() * 2))
    same(whole[2 * me() : 2 * me() + 2], total[2 * me() : 2 * me() + 2])


def check_all_to_all() -> None:
    for dtype in EVERY:
        # Rank sends row `to` of its matrix, repeated to + 1 times, to rank `to`.
        inputs = [of_rank(me(), dtype, world(), 4)[to].repeat(to + 1, 1) for to in range(world())]
        expected = [of_rank(rank, dtype, world(), 4)[me()].repeat(me() + 1, 1) for rank in range(world())]
        outputs = [torch.zeros_like(tensor) for tensor in expected]
        dist.all_to_all(outputs, inputs)
        for output, right in zip(outputs, expected, strict=True):
            same(output, right, dtype)
        whole = torch.zeros_like(torch.cat(expected))
        dist.all_to_all_single(
            whole, torch.cat(inputs), [me() + 1] * world(), [to + 1 for to in range(world())]
        )
        same(whole, torch.cat(expected), dtype)
        even = torch.zeros(world(), 4, dtype=dtype)
        dist.all_to_all_single(even, of_rank(me(), dtype, world(), 4))
        same(even, torch.stack([of_rank(rank, dtype, world(), 4)[me()] for rank in range(world())]), dtype)


def check_asynchronous_collectives_end_in_order() -> None:
    tensors = [of_rank(me()) + number for number in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    results: list[torch.Tensor] = []
    done = works[-1].get_future().then(lambda future: results.append(future.value()[0]))
    for work in reversed(works):
        work.wait()
        assert work.is_completed()
    done.wait()
    assert results[0] is tensors[-1]
    for number, tensor in enumerate(tensors):
        same(tensor, fold(torch.add, of_all()) + number * world())


def check_a_callback_may_wait_for_a_collective() -> None:
    second, third = torch.ones(2), torch.ones(2)

    def then(future: torch.futures.Future[Any]) -> Any:
        dist.all_reduce(second)
        dist.all_reduce(third, async_op=True).get_future().wait()
        return future.value()[0] + second + third

    work = dist.all_reduce(torch.ones(2), async_op=True)
    same(work.get_future().then(then).wait(), torch.full((2,), 3.0 * world()))


def check_coalesced_collectives() -> None:
    tensors = of_all()
    mine = [tensors[me()] + number for number in range(3)]
    with dist._coalescing_manager():
        for tensor in mine:
            dist.all_reduce(tensor)
    wholes = [torch.zeros(6 * world(), 5) for _ in range(3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for whole in wholes:
            dist.all_gather_into_tensor(whole, of_rank(me()))
    manager.wait()
    parts = [torch.zeros(2) for _ in range(3)]
    with dist._coalescing_manager():
        for part in parts:
            dist.reduce_scatter_tensor(part, torch.ones(2 * world()))
    for number in range(3):
        same(mine[number], fold(torch.add, tensors) + number * world())
        same(wholes[number], torch.cat(tensors))
        same(parts[number], torch.full((2,), float(world())))


def check_functional_collectives() -> None:
    group = dist.distributed_c10d._get_default_group()
    total = fold(torch.add, of_all())
    same(functional.all_reduce(of_rank(me()), "sum", group) + 0, total)
    same(functional.all_gather_tensor(of_rank(me()), 0, group) + 0, torch.cat(of_all()))
    part = functional.reduce_scatter_tensor(of_rank(me(), torch.float32, world() * 2), "avg", 0, group) + 0
    same(part, mean(fold(torch.add, of_all(torch.float32, world() * 2)))[2 * me() : 2 * me() + 2])
    same(functional.broadcast(of_rank(me()), 1, group) + 0, of_rank(1))
    row = functional.all_to_all_single(of_rank(me(), torch.float32, world(), 4), None, None, group) + 0
    same(row, torch.stack([of_rank(rank, torch.float32, world(), 4)[me()] for rank in range(world())]))


def check_objects() -> None:
    everyone: list[Any] = [None] * world()
    dist.all_gather_object(everyone, {"rank": me(), "more": "x" * me() * 1000})
    assert [one["rank"] for one in everyone] == list(range(world()))
    box = [{"from": me()}]
    dist.broadcast_object_list(box, src=1)
    assert box == [{"from": 1}]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"for {rank}" for rank in range(world())] if me() == 0 else None, src=0)
    assert mine == [f"for {me()}"]
    gathered = [None] * world() if me() == 0 else None
    dist.gather_object(me(), gathered, dst=0)
    assert gathered in (None, list(range(world())))


def check_sparse_tensors_are_added() -> None:
    places = torch.tensor([[0, me()], [1, 2]])
    tensor = torch.sparse_coo_tensor(places, torch.tensor([1.0, 10.0]), (world(), 3), check_invariants=True)
    dist.all_reduce(tensor)
    expected = torch.zeros(world(), 3)
    expected[0, 1] = world()
    expected[:, 2] = 10
    same(tensor.to_dense(), expected)
