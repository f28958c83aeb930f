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
        patch("muster.train.mpi_backend.exchange.message", given),
        patch("muster.train.mpi_backend.dense.message", given),
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
    assert done == (["stream complete", "given to MPI on the GPU"] if me() < 2 else []), done


def check_a_sum_that_torch_prepares_is_made_on_the_host() -> None:
    """On a GPU the multiplication would still be in a stream while MPI reads."""
    with gpu(aware=True) as record:
        tensor = on_gpu(torch.ones(2))
        options = dist.AllreduceOptions()
        options.reduceOp = dist._make_nccl_premul_sum(0.5)
        group().allreduce([tensor], options).wait()
    same(tensor.as_subclass(torch.Tensor), torch.full((2,), 0.5 * world()))
    assert "given to MPI on the host" in [what for what, _ in record], record
