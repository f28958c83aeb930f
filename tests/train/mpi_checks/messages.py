"""send and recv, groups of some ranks, and counts that are too large for one call of MPI."""

from __future__ import annotations

import weakref
from datetime import timedelta
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

from muster.train.mpi_backend import MpiBackendError, TimedOutError, buffers
from muster.train.mpi_backend.library import MPI
from tests.train.mpi_checks.values import EVERY, REAL, fold, me, of_all, of_rank, same, world
from tests.waiting import wait_until


def check_send_and_receive_round_the_ring() -> None:
    following, previous = (me() + 1) % world(), (me() - 1) % world()
    for tag, dtype in enumerate(EVERY):
        buffer = torch.zeros(6, 5, dtype=dtype)
        receiving = dist.irecv(buffer, previous, tag=tag)
        dist.send(of_rank(me(), dtype), following, tag=tag)
        receiving.wait()
        same(buffer, of_rank(previous, dtype), dtype)


def check_tags_keep_messages_apart() -> None:
    if me() == 0:
        for tag in (1, 2, 3):
            dist.send(torch.full((2,), float(tag)), 1, tag=tag)
    if me() == 1:
        for tag in (3, 1, 2):
            buffer = torch.zeros(2)
            dist.recv(buffer, 0, tag=tag)
            same(buffer, torch.full((2,), float(tag)))


def check_receive_from_whoever_sends() -> None:
    if me():
        dist.send(torch.full((3,), float(me())).t(), 0)
        return
    sources = set()
    for _ in range(1, world()):
        buffer = torch.zeros(3)
        source = dist.recv(buffer)
        same(buffer, torch.full((3,), float(source)))
        sources.add(source)
    assert sources == set(range(1, world()))


def check_a_batch_of_messages() -> None:
    rooms = [torch.zeros(6, 5) for _ in range(world())]
    others = [rank for rank in range(world()) if rank != me()]
    operations = [dist.P2POp(dist.isend, of_rank(me()), rank) for rank in others]
    operations += [dist.P2POp(dist.irecv, rooms[rank], rank) for rank in others]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for rank in others:
        same(rooms[rank], of_rank(rank))


def check_a_message_of_another_size_is_an_error() -> None:
    for sent in (3, 5):
        if me() == 0:
            dist.send(torch.zeros(sent), 1)
        if me() == 1:
            try:
                dist.recv(torch.zeros(4), 0)
            except MpiBackendError as error:
                assert "recv from rank 0" in str(error), error
            else:
                raise AssertionError(f"{sent} elements were taken for 4")


def check_a_message_that_does_not_come_times_out() -> None:
    buffer = torch.zeros(1)
    if me() == 0:
        work = dist.irecv(buffer, 1)
        try:
            work.wait(timedelta(seconds=0.2))
        except TimedOutError as error:
            assert "recv from rank 1 has Timed out after 0.2 s" in str(error), error
        else:
            raise AssertionError("nobody sent anything")
        dist.barrier()
        work.wait()
        same(buffer, torch.ones(1))
    else:
        dist.barrier()
        if me() == 1:
            dist.send(torch.ones(1), 0)


def check_a_message_that_is_done_keeps_no_tensor() -> None:
    if me() > 1:
        return
    kept: list[weakref.ref[torch.Tensor]] = []
    for asynchronous in (False, True):
        tensor = torch.ones(3)
        alive = weakref.ref(tensor)
        if asynchronous:
            work = dist.isend(tensor, 1) if me() == 0 else dist.irecv(tensor, 0)
            work.wait()
            assert work.result()[0] is tensor  # as long as somebody has the handle
            del work
        elif me() == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
        del tensor
        kept.append(alive)
    if torch.__version__ < "2.7":  # there a group keeps the last message until the next one begins
        dist.send(torch.ones(1), 1) if me() == 0 else dist.recv(torch.ones(1), 0)
    assert [alive() for alive in kept] == [None, None]


def check_what_is_kept_for_torch_2_6_is_kept_until_it_was_waited_for() -> None:
    with patch.object(torch, "__version__", TorchVersion("2.6.0")):
        group = dist.new_group()
    waiting = torch.ones(2)
    work, alive = dist.all_reduce(waiting, group=group, async_op=True), weakref.ref(waiting)
    del waiting
    _wait_for_another(group)
    assert alive() is not None
    work.wait()
    del work
    _wait_for_another(group)
    wait_until(lambda: alive() is None, "the thread of the queue to drop what it ran")
    dist.destroy_process_group(group)


def _wait_for_another(group: dist.ProcessGroup | None) -> None:
    """A collective after which what was waited for before it is dropped."""
    dist.all_reduce(torch.ones(2), group=group, async_op=True).wait()


def check_groups_of_some_ranks() -> None:
    pairs = [[first, second] for first in range(world()) for second in range(first + 1, world())]
    for pair in pairs:
        group = dist.new_group(pair)
        if me() in pair:
            tensor = of_rank(me())
            dist.all_reduce(tensor, group=group)
            same(tensor, fold(torch.add, [of_rank(rank) for rank in pair]))
            dist.broadcast(tensor, pair[1], group=group)
            dist.destroy_process_group(group)


def check_groups_that_only_their_members_make() -> None:
    if me() < 2:
        group = dist.new_group([0, 1], use_local_synchronization=True)
        box = [me()]
        dist.broadcast_object_list(box, src=1, group=group)
        assert box == [1]


def check_two_groups_in_opposite_orders() -> None:
    groups = [dist.new_group(), dist.new_group()]
    tensors = [of_rank(me()), of_rank(me())]
    order = (0, 1) if me() % 2 else (1, 0)
    works = [dist.all_reduce(tensors[which], group=groups[which], async_op=True) for which in order]
    for work in works:
        work.wait(timedelta(seconds=100))
    for tensor in tensors:
        same(tensor, fold(torch.add, of_all()))


def check_a_group_can_be_split() -> None:
    half = dist.distributed_c10d._get_default_group().splitGroup([1, 0])
    assert (half is None) == (me() > 1)
    if half is not None:
        assert half.rank() == 1 - me()
        tensor = of_rank(me())
        half.allreduce([tensor]).wait()
        same(tensor, of_rank(0) + of_rank(1))
        half.shutdown()


def check_an_aborted_group_takes_nothing_more() -> None:
    group = dist.new_group()
    group.abort()
    try:
        dist.all_reduce(torch.ones(1), group=group)
    except MpiBackendError as error:
        assert "the process group was aborted" in str(error), error
    else:
        raise AssertionError("an aborted group went on")
    dist.destroy_process_group(group)
    dist.barrier()


def check_a_collective_that_others_do_not_join_can_be_waited_for() -> None:
    group = dist.new_group()
    if me() == 0:
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        try:
            work.wait(timedelta(seconds=0.2))
        except TimedOutError:
            pass
        else:
            raise AssertionError("nobody else was there")
    dist.barrier()
    if me() == 0:
        work.wait()
    else:
        dist.all_reduce(torch.ones(1), group=group)


def check_a_message_of_2_gib_has_a_size() -> None:
    status = MPI.Status()
    status.Set_elements(MPI.BYTE, 2**31)
    assert buffers.bytes_received(status) == 2**31


def check_counts_above_the_limit_of_one_call() -> None:
    with patch.multiple(buffers, LIMIT=7, REDUCED_AT_ONCE=0):  # 30 elements are five calls
        _every_collective()
        check_send_and_receive_round_the_ring()
        check_receive_from_whoever_sends()


def _every_collective() -> None:
    for dtype in (*REAL, torch.int64):
        total = of_rank(me(), dtype)
        dist.all_reduce(total)
        same(total, fold(torch.add, of_all(dtype)), dtype)
        dist.reduce(total, 1)
        tensor = of_rank(me(), dtype)
        dist.broadcast(tensor, 1)
        same(tensor, of_rank(1, dtype), dtype)
        whole = torch.zeros(6 * world(), 5, dtype=dtype)
        dist.all_gather_into_tensor(whole, of_rank(me(), dtype))
        same(whole, torch.cat(of_all(dtype)), dtype)
        part = torch.zeros(10, dtype=dtype)
        dist.reduce_scatter_tensor(part, of_rank(me(), dtype, world() * 10))
        same(part, fold(torch.add, of_all(dtype, world() * 10)).split(10)[me()], dtype)
        swapped = torch.zeros(world() * 10, dtype=dtype)
        dist.all_to_all_single(swapped, of_rank(me(), dtype, world() * 10))
        same(swapped, torch.cat([one.split(10)[me()] for one in of_all(dtype, world() * 10)]), dtype)
