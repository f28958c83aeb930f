"""What a program gets wrong, and what is refused: an error on the right ranks, and a group that goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from muster.train.mpi_backend import MismatchError, MpiBackendError
from tests.train.mpi_checks.values import me, of_rank, same, world


def fails(call: Callable[[], object], kind: type[Exception], words: str) -> None:
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}: {words}")


def goes_on() -> None:
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    same(tensor, torch.full((3,), float(world())))


def at_root(call: Callable[[], object]) -> None:
    """Rank 1 sends three elements where rank 0 expects five; the others do what is right."""
    if me() == 0:
        fails(call, MismatchError, "rank 1 sent 12 bytes where 20 were expected")
    else:
        call()
    goes_on()


def check_gather_refuses_a_part_that_is_too_short() -> None:
    rooms = [torch.zeros(5) for _ in range(world())] if me() == 0 else None
    part = torch.ones(3 if me() == 1 else 5)
    at_root(lambda: dist.gather(part, rooms, dst=0))


def check_scatter_refuses_a_part_that_is_too_short() -> None:
    parts = [torch.ones(3 if rank == 0 else 5) for rank in range(world())] if me() == 1 else None
    at_root(lambda: dist.scatter(torch.zeros(5), parts, src=1))


def check_all_to_all_refuses_a_part_that_is_too_short() -> None:
    parts = [torch.ones(3 if (me(), rank) == (1, 0) else 5) for rank in range(world())]
    rooms = [torch.zeros(5) for _ in range(world())]
    at_root(lambda: dist.all_to_all(rooms, parts))


def check_all_gather_of_different_sizes_refuses_a_part_that_is_too_short() -> None:
    rooms = [torch.zeros(5 if (me(), rank) == (0, 1) else 2 + rank) for rank in range(world())]
    at_root(lambda: dist.all_gather(rooms, torch.ones(2 + me())))


def check_sparse_tensors_are_only_added() -> None:
    tensor = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (2,), check_invariants=True)
    for op in (ReduceOp.MAX, ReduceOp.AVG, ReduceOp.PRODUCT):
        fails(lambda: dist.all_reduce(tensor, op), ValueError, "has only SUM")  # noqa: B023 - called at once
    fails(lambda: dist.broadcast(tensor, 0), ValueError, "use to_dense()")
    goes_on()


def check_an_average_does_not_overflow_on_the_way() -> None:
    for dtype, value in (
        (torch.float16, 40000),
        (torch.int8, 100),
        (torch.uint8, 200),
        (torch.int32, 2**31 - 7),
    ):
        expected = torch.full((2,), value, dtype=dtype)
        tensor = expected.clone()
        dist.all_reduce(tensor, ReduceOp.AVG)
        same(tensor, expected, dtype)
        dist.reduce(tensor, 0, ReduceOp.AVG)
        same(tensor, expected, dtype)
        part = torch.zeros(2, dtype=dtype)
        dist.reduce_scatter_tensor(part, expected.repeat(world()), ReduceOp.AVG)
        same(part, expected, dtype)


def check_a_premultiplied_sum_of_integers_is_refused() -> None:
    factor = dist._make_nccl_premul_sum(0.5)
    fails(lambda: dist.all_reduce(of_rank(me(), torch.int64), factor), ValueError, "PREMUL_SUM")
    goes_on()


def check_the_error_of_a_message_comes_from_its_own_handle() -> None:
    """80 messages are more than the group keeps without a look at those before."""
    if me() == 0:
        wrong = dist.irecv(torch.zeros(4), 1, tag=7)
        dist.barrier()
        for _ in range(80):
            dist.recv(torch.zeros(1), 1)
        fails(wrong.wait, MpiBackendError, "recv from rank 1: rank 1 sent 12 bytes where 16 were expected")
    else:
        if me() == 1:
            dist.send(torch.zeros(3), 0, tag=7)
        dist.barrier()
        for _ in range(80 * (me() == 1)):
            dist.send(torch.zeros(1), 0)
    goes_on()


def check_futures_of_messages_do_not_wait() -> None:
    """Each rank wants the future of what it receives before it sends what the other one wants."""
    if me() < 2:
        room, sent = torch.zeros(3), torch.full((3,), float(me()))
        future = dist.irecv(room, 1 - me()).get_future()
        doubled = future.then(lambda done: done.value()[0] * 2)
        sending = dist.isend(sent, 1 - me())
        same(doubled.wait(), torch.full((3,), 2.0 * (1 - me())))
        sending.wait()
        assert sending.get_future().done()
    goes_on()


def check_the_future_of_a_message_has_its_error() -> None:
    if me() == 0:
        future: Any = dist.irecv(torch.zeros(4), 1).get_future()
        fails(future.wait, RuntimeError, "sent 12 bytes where 16 were expected")
    if me() == 1:
        dist.send(torch.zeros(3), 0)
    goes_on()
