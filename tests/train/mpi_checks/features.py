"""What else torch.distributed does with a backend: futures, threads, messages in order, every type."""

from __future__ import annotations

import threading
from datetime import timedelta
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import ReduceOp
from torch.distributed.nn import functional as differentiable

from tests.train.mpi_checks.values import EVERY, fold, me, mean, of_all, of_rank, same, world

# Types that are only moved: MPI and Gloo need their size alone.
MOVED = (
    *EVERY,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def moved(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return of_rank(rank, torch.float32).to(dtype)


def check_every_type_is_broadcast() -> None:
    for dtype in MOVED:
        tensor = moved(me(), dtype)
        dist.broadcast(tensor, 1)
        same(bits(tensor), bits(moved(1, dtype)), dtype)


def check_every_type_is_gathered() -> None:
    for dtype in MOVED:
        outputs = [moved(0, dtype) for _ in range(world())]
        dist.all_gather(outputs, moved(me(), dtype))
        for rank, output in enumerate(outputs):
            same(bits(output), bits(moved(rank, dtype)), dtype)


def check_every_type_is_sent() -> None:
    for dtype in MOVED:
        if me() == 0:
            dist.send(moved(0, dtype), 1)
        if me() == 1:
            buffer = moved(1, dtype)
            dist.recv(buffer, 0)
            same(bits(buffer), bits(moved(0, dtype)), dtype)


def check_bf16_and_fp16_are_added() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        tensor = of_rank(me(), dtype)
        dist.all_reduce(tensor)
        same(tensor, fold(torch.add, of_all(dtype)), dtype)


def check_bf16_is_added_in_groups_of_two() -> None:
    for pair in combinations(range(world()), 2):
        group = dist.new_group(list(pair))
        if me() in pair:
            tensor = of_rank(me(), torch.bfloat16)
            dist.all_reduce(tensor, group=group)
            same(tensor, fold(torch.add, [of_rank(rank, torch.bfloat16) for rank in pair]))
            dist.destroy_process_group(group)


def check_integers_are_averaged() -> None:
    for dtype in (torch.int32, torch.int64, torch.uint8):
        tensor = torch.full((3,), 2 * me(), dtype=dtype)
        dist.all_reduce(tensor, ReduceOp.AVG)
        same(tensor, torch.full((3,), world() - 1, dtype=dtype), dtype)


def check_the_smallest_and_largest_are_scattered() -> None:
    for op, value in ((ReduceOp.MIN, 0.0), (ReduceOp.MAX, world() - 1.0)):
        part = torch.zeros(2)
        dist.reduce_scatter_tensor(part, torch.full((2 * world(),), float(me())), op)
        same(part, torch.full((2,), value), op)


def check_every_collective_takes_tensors_without_elements() -> None:
    nothing = torch.empty(0)
    dist.broadcast(nothing, 1)
    dist.all_reduce(nothing)
    dist.reduce(nothing, 1)
    dist.all_gather([torch.empty(0) for _ in range(world())], nothing)
    dist.all_gather_into_tensor(torch.empty(0), nothing)
    dist.reduce_scatter_tensor(torch.empty(0), nothing)
    dist.all_to_all_single(torch.empty(0, 4), torch.empty(0, 4))
    dist.gather(nothing, [torch.empty(0) for _ in range(world())] if me() == 0 else None)
    dist.scatter(nothing, [torch.empty(0) for _ in range(world())] if me() == 0 else None)
    dist.barrier()


def check_all_to_all_sends_some_ranks_nothing() -> None:
    """Only to the next rank, and so from the one before."""
    sizes = [4 if rank == (me() + 1) % world() else 0 for rank in range(world())]
    rooms = [4 if rank == (me() - 1) % world() else 0 for rank in range(world())]
    output = torch.zeros(4)
    dist.all_to_all_single(output, torch.full((4,), float(me())), rooms, sizes)
    same(output, torch.full((4,), float((me() - 1) % world())))


def check_futures_are_chained() -> None:
    tensor = torch.ones(2)
    future: Any = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2).then(lambda done: done.value() + 1)
    same(doubled.wait(), torch.full((2,), 2.0 * world() + 1))
    all_of_them = torch.futures.collect_all(
        [dist.all_reduce(torch.ones(1), async_op=True).get_future() for _ in range(5)]
    )
    assert [done.value()[0].item() for done in all_of_them.wait()] == [float(world())] * 5


def check_a_handle_tells_when_it_is_done() -> None:
    work = dist.all_reduce(torch.ones(2), async_op=True)
    assert work.wait(timedelta(seconds=100))
    assert work.is_completed()
    work = dist.barrier(async_op=True)
    work.wait()
    assert work.is_completed()


def check_three_threads_use_a_group_each() -> None:
    groups, wrong = [dist.new_group() for _ in range(3)], []

    def use(number: int) -> None:
        try:
            for step in range(50):
                tensor = torch.full((number + 1,), float(me() + step))
                dist.all_reduce(tensor, group=groups[number])
                same(tensor, torch.full((number + 1,), float(sum(range(world())) + step * world())))
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def check_50_messages_of_one_tag_keep_their_order() -> None:
    if me() == 0:
        for number in range(50):
            dist.isend(torch.full((number % 3 + 1,), float(number)), 1, tag=7).wait()
    if me() == 1:
        rooms = [torch.zeros(number % 3 + 1) for number in range(50)]
        for work in [dist.irecv(buffer, 0, tag=7) for buffer in rooms]:
            work.wait()
        for number, buffer in enumerate(rooms):
            same(buffer, torch.full((number % 3 + 1,), float(number)))


def check_objects_are_sent() -> None:
    if me() == 0:
        dist.send_object_list([{"a": 1}, "text", None], dst=1)
    if me() == 1:
        buffer: list[Any] = [None] * 3
        dist.recv_object_list(buffer, src=0)
        assert buffer == [{"a": 1}, "text", None]


def check_objects_are_gathered_in_groups() -> None:
    members = [rank for rank in range(world()) if rank != 1]
    group = dist.new_group(members)
    if me() != 1:
        buffer: list[Any] = [None] * len(members)
        dist.all_gather_object(buffer, me(), group=group)
        assert buffer == members


def check_collectives_in_inference_mode() -> None:
    with torch.inference_mode():
        for asynchronous in (False, True):
            tensor, strided = of_rank(me()), of_rank(me()).t()
            works = [dist.all_reduce(each, ReduceOp.AVG, async_op=asynchronous) for each in (tensor, strided)]
            for work in works:
                if work is not None:
                    work.wait()
            same(tensor, mean(fold(torch.add, of_all())))
            same(strided, mean(fold(torch.add, of_all())).t())


def check_tensors_made_in_inference_mode() -> None:
    with torch.inference_mode():
        tensors = [of_rank(me()).t() for _ in range(20)]
        rooms = [torch.zeros(5, 6) for _ in range(world())]
    works = [dist.all_reduce(tensor, ReduceOp.AVG, async_op=True) for tensor in tensors]
    done = [work.get_future() for work in works]
    torch.futures.wait_all(done)
    for tensor in tensors:
        same(tensor, mean(fold(torch.add, of_all())).t())
    dist.all_gather(rooms, of_rank(me()).t())
    for rank, buffer in enumerate(rooms):
        same(buffer, of_rank(rank).t())
    if me() == 0:
        dist.irecv(rooms[0].t(), 1).get_future().wait()
        same(rooms[0].t(), torch.ones(6, 5))
    if me() == 1:
        dist.send(torch.ones(6, 5), 0)


def gradient(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


def check_functional_collectives_have_gradients() -> None:
    group = dist.distributed_c10d._get_default_group()
    mine = of_rank(me()).requires_grad_()
    (functional.all_gather_tensor_autograd(mine, 0, group) * (me() + 1)).sum().backward()
    same(gradient(mine), torch.full((6, 5), float(sum(range(1, world() + 1)))))
    whole = of_rank(me(), torch.float32, 2 * world()).requires_grad_()
    (functional.reduce_scatter_tensor_autograd(whole, "sum", 0, group) * (me() + 1)).sum().backward()
    same(gradient(whole), torch.arange(1, world() + 1).float().repeat_interleave(2))
    rows = of_rank(me(), torch.float32, world(), 4).requires_grad_()
    sizes = [1] * world()
    (functional.all_to_all_single_autograd(rows, sizes, sizes, group) * (me() + 1)).sum().backward()
    same(gradient(rows), torch.arange(1, world() + 1).float()[:, None].expand(-1, 4))


def check_differentiable_collectives() -> None:
    mine = of_rank(me()).requires_grad_()
    (differentiable.all_reduce(mine) * (me() + 1)).sum().backward()
    same(gradient(mine), torch.full((6, 5), float(sum(range(1, world() + 1)))))
    other = of_rank(me()).requires_grad_()
    torch.cat(list(differentiable.all_gather(other))).sum().backward()
    same(gradient(other), torch.full((6, 5), float(world())))


def check_functional_collectives_of_several_tensors() -> None:
    group = dist.distributed_c10d._get_default_group()
    sums = functional.all_reduce_coalesced([of_rank(me()), of_rank(me()) + 1], "sum", group)
    same(sums[0] + 0, fold(torch.add, of_all()))
    same(sums[1] + 0, fold(torch.add, of_all()) + world())
    wholes = functional.all_gather_into_tensor_coalesced([of_rank(me()), of_rank(me()) + 1], group)
    same(wholes[1] + 0, torch.cat(of_all()) + 1)


def check_a_monitored_barrier() -> None:
    group: Any = dist.distributed_c10d._get_default_group()  # torch 2.13 asks for Gloo by its name
    group.monitored_barrier(timedelta(seconds=60))
    said = ""
    if me() != 1:
        try:
            group.monitored_barrier(timedelta(seconds=1))
        except RuntimeError as error:
            said = str(error)
    assert me() or "Rank 1 failed to pass monitoredBarrier" in said, said
    dist.barrier()


def check_groups_by_enumeration() -> None:
    group, _ = dist.new_subgroups_by_enumeration([[0, 1], *([each] for each in range(2, world()))])
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=group)
    same(tensor, torch.full((1,), 1.0 if me() >= 2 else 2.0))
