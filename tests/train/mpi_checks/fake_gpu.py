"""Tensors on a GPU, where there is none: host memory that says it is a GPU's, and streams that keep a record.

What this holds is the order: MPI gets a tensor only when the streams of the caller and of the thread that
runs the collective are complete, under the tensor's device. It does not show that a real GPU's memory
arrives.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from muster.train.mpi_backend import buffers
from tests.train.mpi_checks.values import fold, me, of_all, of_rank, same, world

Record = list[tuple[str, bool]]  # what was done, and whether the caller's thread did it


class OnGpu(torch.Tensor):
    """A tensor in host memory that says that it is on a GPU."""

    is_cuda = True
    is_cpu = False


def group() -> Any:
    """The process group itself: dist.all_reduce would call it with plain tensors instead of ours."""
    return dist.distributed_c10d._get_default_group()


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(OnGpu)


@contextmanager
def gpu(*, aware: bool) -> Iterator[Record]:
    """Return the record of a GPU and of what MPI is given; `aware` is what MPI says of itself."""
    record: Record = []
    caller, message, empty = threading.get_ident(), buffers.message, torch.empty

    def note(what: str) -> None:
        record.append((what, threading.get_ident() == caller))

    class Stream:
        def synchronize(self) -> None:
            note("stream complete")

    class Event:
        def record(self) -> None:
            note("event recorded")

        def synchronize(self) -> None:
            note("event complete")

        def query(self) -> bool:
            note("event complete")
            return True

    @contextmanager
    def device(_: object) -> Iterator[None]:
        note("device")
        yield

    def given(flat: torch.Tensor, datatype: Any = None) -> Any:
        described = message(flat, datatype)
        note("given to MPI on the GPU" if flat.is_cuda else "given to MPI on the host")
        return described

    def unpinned(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return empty(*size, **options)

    with (
        patch.multiple(torch.cuda, Event=Event, device=device, current_stream=lambda _=None: Stream()),
        patch.object(buffers, "mpi_is_cuda_aware", lambda: aware),
        patch.object(torch, "empty", unpinned),
        patch("muster.train.mpi_backend.collectives.message", given),
        patch("muster.train.mpi_backend.point_to_point.message", given),
    ):
        yield record


def check_a_collective_of_a_gpu_waits_for_the_callers_stream() -> None:
    for aware in (True, False):
        for asynchronous in (True, False):
            with gpu(aware=aware) as record:
                tensor = on_gpu(of_rank(me()))
                options = dist.AllreduceOptions()
                options.asyncOp = asynchronous
                group().allreduce([tensor], options).wait()
            same(tensor.as_subclass(torch.Tensor), fold(torch.add, of_all()))
            in_order(record, aware=aware)


def check_scatter_of_a_gpu_waits_on_every_rank() -> None:
    with gpu(aware=True) as record:
        output = on_gpu(torch.zeros(6, 5))
        parts = [[on_gpu(tensor) for tensor in of_all()]] if me() == 0 else []
        group().scatter([output], parts, dist.ScatterOptions()).wait()
    same(output.as_subclass(torch.Tensor), of_rank(me()))
    in_order(record, aware=True)


def in_order(record: Record, *, aware: bool) -> None:
    """The caller records an event; the thread that runs the collective takes the device and waits."""
    assert record[:2] == [("device", True), ("event recorded", True)], record
    done = [what for what, _ in record]
    assert done[2:4] == ["device", "event complete"], done
    place = "given to MPI on the GPU" if aware else "given to MPI on the host"
    assert place in done, done
    before = done[4 : done.index(place)]
    assert not aware or before[-1] == "stream complete", done
    assert done[-1] == "stream complete", done


def check_messages_of_a_gpu_wait_for_the_callers_stream() -> None:
    with gpu(aware=True) as record:
        if me() == 0:
            group().send([on_gpu(torch.ones(3))], 1, 0).wait()
        if me() == 1:
            buffer = on_gpu(torch.zeros(3))
            group().recv([buffer], 0, 0).wait()
            same(buffer.as_subclass(torch.Tensor), torch.ones(3))
    done = [what for what, _ in record]
    given = ["stream complete", "given to MPI on the GPU"]
    received = ["device", "event recorded", *given, "event complete", "stream complete"]
    assert done == (given, received, [])[me()], done


def check_a_message_is_copied_to_a_gpu_after_what_its_memory_was_used_for() -> None:
    with gpu(aware=False) as record:
        if me() == 0:
            group().send([on_gpu(torch.ones(3))], 1, 0).wait()
        if me() == 1:
            buffer = on_gpu(torch.zeros(3, 2).t()[0])
            group().recv([buffer], 0, 0).get_future().wait()
            same(buffer.as_subclass(torch.Tensor), torch.ones(3))
    done = [what for what, _ in record]
    received = ["device", "event recorded", "given to MPI on the host", "event complete", "stream complete"]
    assert done == (["given to MPI on the host"], received, [])[me()], done


def check_the_default_device_of_a_program_is_not_that_of_the_backend() -> None:
    """A program makes its GPU the default; what the backend makes for a call must be in host memory."""
    tensors = {dtype: of_rank(me(), dtype) for dtype in (torch.int16, torch.float16, torch.bfloat16)}
    totals = {dtype: fold(torch.add, of_all(dtype)) for dtype in tensors}
    turned, rooms = of_rank(me()).t(), [torch.zeros(6, 5) for _ in range(world())]
    part, whole = torch.zeros(2, dtype=torch.float16), torch.ones(2 * world(), dtype=torch.float16)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1), (2,), check_invariants=True)
    with torch.device("meta"):
        for tensor in tensors.values():
            dist.all_reduce(tensor)
        dist.all_reduce(turned)
        dist.all_gather(rooms, torch.ones_like(rooms[0]))
        dist.reduce_scatter_tensor(part, whole, dist.ReduceOp.AVG)
        dist.all_reduce(sparse)
    for dtype, tensor in tensors.items():
        same(tensor, totals[dtype], dtype)
    same(turned, fold(torch.add, of_all()).t())
    same(rooms[2], torch.ones(6, 5))
    same(part, torch.ones(2, dtype=torch.float16))
    same(sparse.to_dense(), torch.tensor([world(), 0.0]))


def check_a_sum_that_torch_prepares_is_made_on_the_host() -> None:
    """On a GPU the multiplication would still be in a stream while MPI reads."""
    with gpu(aware=True) as record:
        tensor = on_gpu(torch.ones(2))
        options = dist.AllreduceOptions()
        options.reduceOp = dist._make_nccl_premul_sum(0.5)
        group().allreduce([tensor], options).wait()
    same(tensor.as_subclass(torch.Tensor), torch.full((2,), 0.5 * world()))
    assert "given to MPI on the host" in [what for what, _ in record], record
