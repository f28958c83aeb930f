"""What a program gets wrong, and what is refused: an error on the right ranks, and a group that goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

from muster.train.mpi_backend import MismatchError, MpiBackendError, reduction
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


def check_a_part_that_is_too_long_ends_the_collective_when_the_others_are_there() -> None:
    """MPI returns at the first error, and would write to the other tensors afterwards."""
    group = dist.new_group()  # which cannot be used afterwards
    parts = [torch.ones(7 if (me(), rank) == (0, 1) else 5) for rank in range(world())]
    rooms = [torch.zeros(5) for _ in range(world())]
    if me() == 2:
        time.sleep(0.5)
    if me() == 1:
        fails(lambda: dist.all_to_all(rooms, parts, group=group), MpiBackendError, "all_to_all")
    else:
        dist.all_to_all(rooms, parts, group=group)
    assert all(room.all() for rank, room in enumerate(rooms) if (me(), rank) != (1, 0)), rooms
    goes_on()


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
        buffer, sent = torch.zeros(3), torch.full((3,), float(me()))
        future = dist.irecv(buffer, 1 - me()).get_future()
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


def refused(call: Callable[[], object], words: str) -> None:
    """Before anything is sent, so that every rank gets it, and the group goes on."""
    fails(call, ValueError, words)
    goes_on()


def check_sizes_that_do_not_fit_are_refused_before_anything_is_sent() -> None:
    n, six = world(), torch.zeros(6)
    whole, four = torch.zeros(2 * n), [4] * n
    refused(lambda: dist.all_to_all_single(whole, whole.clone(), [2] * n, four), f"split sizes {four}")
    refused(
        lambda: dist.all_to_all_single(six, six.clone(), [6], [6]), f"do not divide 6 rows among {n} ranks"
    )
    refused(lambda: dist.all_to_all_single(six, torch.zeros(7)), "7 rows do not divide")
    refused(lambda: dist.all_gather_into_tensor(six, torch.zeros(4)), f"is not {n} parts of 4 each")
    refused(lambda: dist.reduce_scatter_tensor(six, torch.zeros(6)), f"is not {n} parts of 6 each")
    refused(lambda: dist.all_gather([six] * (n - 1), six), f"each of the {n} ranks")
    refused(lambda: dist.all_to_all([six] * (n - 1), [six] * (n - 1)), f"each of the {n} ranks")
    refused(lambda: dist.reduce_scatter(six, [torch.zeros(2) for _ in range(world())]), "6 elements for 2")


def check_types_that_differ_are_refused_before_anything_is_sent() -> None:
    wide = torch.zeros(3, dtype=torch.float64)
    group: Any = dist.distributed_c10d._get_default_group()
    words = "the tensors differ in type: torch.float"
    refused(lambda: dist.all_gather_into_tensor(torch.zeros(3 * world()), wide), words)
    refused(lambda: group._reduce_scatter_base(torch.zeros(1), wide, dist.ReduceScatterOptions()), words)
    refused(lambda: group.allgather([[torch.zeros(3) for _ in range(world())]], [wide]), words)


def check_tensors_that_cannot_hold_a_result_are_refused() -> None:
    shared = torch.zeros(1).expand(3)
    refused(lambda: dist.all_reduce(shared), "share memory")
    refused(lambda: dist.broadcast(shared, 0), "share memory")
    refused(lambda: dist.reduce_scatter_tensor(shared, torch.zeros(9)), "share memory")
    refused(lambda: dist.recv(shared, (me() + 1) % world()), "share memory")
    whole = torch.zeros(3 * world())
    dist.all_gather_into_tensor(whole, torch.ones(1).expand(3))  # it is only read
    same(whole, torch.ones(3 * world()))


def check_tensors_without_memory_are_refused() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    meta = torch.zeros(3, device="meta")
    refused(lambda: dist.all_reduce(meta), "the device meta cannot be sent")
    refused(lambda: dist.broadcast(meta, 0), "the device meta cannot be sent")
    refused(lambda: dist.send(meta, (me() + 1) % world()), "the device meta cannot be sent")
    refused(lambda: dist.all_reduce(torch.zeros(2, 2).to_sparse_csr()), "use to_dense()")
    with FakeTensorMode():
        fake = torch.zeros(3)
    refused(lambda: dist.all_reduce(fake), "a FakeTensor has no memory")


def check_operations_that_torch_does_not_have_for_a_type_are_refused() -> None:
    for op, dtype in (
        (ReduceOp.AVG, torch.uint64),
        (ReduceOp.SUM, torch.float4_e2m1fn_x2),
        (ReduceOp.AVG, torch.float4_e2m1fn_x2),
        (ReduceOp.MAX, torch.bits8),
        (ReduceOp.BAND, torch.bits8),
        (ReduceOp.AVG, torch.bits16),
        (ReduceOp.SUM, torch.uint2),
    ):
        if not hasattr(torch, str(dtype).removeprefix("torch.")):
            continue
        tensor = torch.empty(2, dtype=dtype)  # a GPU cannot fill all of them
        refused(lambda: dist.all_reduce(tensor, op), f"{op.name} is not defined for {dtype}")  # noqa: B023
        refused(
            lambda: dist.reduce_scatter_tensor(tensor, torch.empty(2 * world(), dtype=dtype), op),  # noqa: B023
            f"{op.name} is not defined for {dtype}",
        )
    factor = dist._make_nccl_premul_sum(torch.tensor(1j))
    refused(lambda: dist.all_reduce(torch.ones(2), factor), "PREMUL_SUM is not defined for torch.float32")


def check_ranks_and_tags_that_do_not_exist_are_refused() -> None:
    tensor = torch.ones(1)
    refused(lambda: dist.broadcast(tensor, group_src=7), "there is no rank 7")
    refused(lambda: dist.reduce(tensor, group_dst=-1), "there is no rank -1")
    refused(lambda: dist.send(tensor, (me() + 1) % world(), tag=-5), "the tag -5 is not between 0 and")
    refused(lambda: dist.isend(tensor, group_dst=9), "there is no rank 9")


def check_an_exception_in_a_callback_of_mpi_ends_its_collective_and_not_the_job() -> None:
    """Ctrl-C comes at any time. A group of its own, because this one cannot be used any more."""
    group, add = dist.new_group(), reduction._COMBINE["SUM"]

    def interrupted(*tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        if me() == 1 and tensors[0].numel() > 1:
            raise KeyboardInterrupt
        return add(*tensors, **options)

    reduction.callback.cache_clear()
    reduction.plain.cache_clear()
    tensor = torch.ones(4, dtype=torch.bfloat16)
    with patch.dict(reduction._COMBINE, SUM=interrupted):
        try:
            dist.all_reduce(tensor, group=group)
        except KeyboardInterrupt:
            assert me() == 1
            fails(lambda: dist.all_reduce(tensor, group=group), MpiBackendError, "unusable")
    reduction.callback.cache_clear()
    reduction.plain.cache_clear()
    # The rank that raised has no result, unless MPI worked in the memory of the tensor, as it does on a CPU.
    # Of two ranks the other one adds up for itself.
    assert me() == 1 or world() == 2 or tensor.isnan().any(), tensor
    goes_on()
