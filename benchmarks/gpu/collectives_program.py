"""The ranks of part_mpi.py: collectives and messages of tensors on a device, whose values every rank knows.

    muster launch collectives_program.py BACKEND DEVICE

All ranks use the same GPU. On it, the checks of streams give a backend tensors whose values a kernel has not
written yet, in a stream other than the default one.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.gpu.jobs import tell
from muster.train.job.ranks import Ranks
from muster.train.job.rendezvous import rendezvous_store
from muster.train.mpi_backend import register

DEVICE = torch.device(sys.argv[2])
SIZE = 100_000  # elements of a tensor
TIMED_MIB = 64
TYPES = (torch.float32, torch.bfloat16, torch.int64)


def me() -> int:
    return dist.get_rank()


def world() -> int:
    return dist.get_world_size()


def of(rank: int, dtype: torch.dtype = torch.float32, size: int = SIZE) -> Tensor:
    """The tensor of a rank: small whole numbers, which every type adds without rounding."""
    return ((torch.arange(size, device=DEVICE) + rank) % 5).to(dtype)


def total(dtype: torch.dtype, size: int = SIZE) -> Tensor:
    return sum(
        (of(rank, dtype, size) for rank in range(world())), torch.zeros(size, dtype=dtype, device=DEVICE)
    )


def same(got: Tensor, right: Tensor) -> None:
    if not torch.equal(got, right):
        wrong = (got != right).sum().item()
        raise AssertionError(f"{wrong} of {got.numel()} {got.dtype} are wrong")


def all_reduce(dtype: torch.dtype) -> None:
    dist.all_reduce(tensor := of(me(), dtype))
    same(tensor, total(dtype))


def broadcast(dtype: torch.dtype) -> None:
    dist.broadcast(tensor := of(me(), dtype), world() - 1)
    same(tensor, of(world() - 1, dtype))


def reduce(dtype: torch.dtype) -> None:
    dist.reduce(tensor := of(me(), dtype), 0)
    if me() == 0:
        same(tensor, total(dtype))


def all_gather(dtype: torch.dtype) -> None:
    rooms = [torch.zeros(SIZE, dtype=dtype, device=DEVICE) for _ in range(world())]
    dist.all_gather(rooms, of(me(), dtype))
    same(torch.cat(rooms), torch.cat([of(rank, dtype) for rank in range(world())]))


def all_gather_into_tensor(dtype: torch.dtype) -> None:
    whole = torch.zeros(SIZE * world(), dtype=dtype, device=DEVICE)
    dist.all_gather_into_tensor(whole, of(me(), dtype))
    same(whole, torch.cat([of(rank, dtype) for rank in range(world())]))


def reduce_scatter_tensor(dtype: torch.dtype) -> None:
    part = torch.zeros(SIZE, dtype=dtype, device=DEVICE)
    dist.reduce_scatter_tensor(part, of(me(), dtype, SIZE * world()))
    same(part, total(dtype, SIZE * world())[me() * SIZE : (me() + 1) * SIZE])


def gather(dtype: torch.dtype) -> None:
    rooms = [torch.zeros(SIZE, dtype=dtype, device=DEVICE) for _ in range(world())]
    dist.gather(of(me(), dtype), rooms if me() == 0 else None, 0)
    if me() == 0:
        same(torch.cat(rooms), torch.cat([of(rank, dtype) for rank in range(world())]))


def scatter(dtype: torch.dtype) -> None:
    room = torch.zeros(SIZE, dtype=dtype, device=DEVICE)
    dist.scatter(room, [of(rank, dtype) for rank in range(world())] if me() == 0 else None, 0)
    same(room, of(me(), dtype))


def all_to_all_single(dtype: torch.dtype) -> None:
    room = torch.zeros(SIZE * world(), dtype=dtype, device=DEVICE)
    dist.all_to_all_single(room, of(me(), dtype, SIZE * world()))
    parts = [of(rank, dtype, SIZE * world())[me() * SIZE : (me() + 1) * SIZE] for rank in range(world())]
    same(room, torch.cat(parts))


def coalesced(dtype: torch.dtype) -> None:
    tensors = [of(me(), dtype), of(me(), dtype) + 1]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    same(tensors[1], total(dtype) + world())


def send_and_recv(dtype: torch.dtype) -> None:
    room = torch.zeros(SIZE, dtype=dtype, device=DEVICE)
    if me() == 0:
        dist.send(of(0, dtype), 1)
    if me() == 1:
        dist.recv(room, 0)
        same(room, of(0, dtype))


def batch_isend_irecv(dtype: torch.dtype) -> None:
    room = torch.zeros(SIZE, dtype=dtype, device=DEVICE)
    following, previous = (me() + 1) % world(), (me() - 1) % world()
    both = [dist.P2POp(dist.isend, of(me(), dtype), following), dist.P2POp(dist.irecv, room, previous)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    same(room, of(previous, dtype))


# -- streams --


def side_stream() -> Any:
    return torch.cuda.stream(torch.cuda.Stream(DEVICE)) if DEVICE.type == "cuda" else nullcontext()


def keep_busy() -> None:
    """Give the current stream work for some hundredths of a second."""
    if DEVICE.type == "cuda":
        torch.cuda._sleep(50_000_000)


def in_a_side_stream() -> None:
    """The backend waits for what was queued before, and what is queued after sees the result."""
    with side_stream():
        tensor = torch.zeros(SIZE, device=DEVICE)
        keep_busy()
        tensor.fill_(me() + 1)
        dist.all_reduce(tensor)
        doubled = tensor * 2
        same(doubled, torch.full_like(doubled, world() * (world() + 1)))


def asynchronous_in_a_side_stream() -> None:
    with side_stream():
        tensors = [torch.zeros(SIZE, device=DEVICE) for _ in range(4)]
        works = []
        for number, tensor in enumerate(tensors):
            keep_busy()
            tensor.fill_(me() + number)
            works.append(dist.all_reduce(tensor, async_op=True))
        for number, (tensor, work) in enumerate(zip(tensors, works, strict=True)):
            work.wait()
            same(tensor * 2, torch.full_like(tensor, 2.0 * (sum(range(world())) + number * world())))


def a_future_with_a_callback() -> None:
    """The callback's kernel runs in another stream than the one that reads its result."""

    def doubled(done: torch.futures.Future[Any]) -> Any:
        keep_busy()
        return done.value()[0] * 2

    with side_stream():
        work = dist.all_reduce(torch.full((SIZE,), 1.0, device=DEVICE), async_op=True)
        result: Any = work.get_future().then(doubled).wait()
        same(result + 1, torch.full((SIZE,), 2.0 * world() + 1, device=DEVICE))


def memory_that_is_freed_at_once() -> None:
    """Nothing else gets the memory of a tensor before the collective is done with it."""
    kept = []
    for number in range(20):
        work = dist.all_reduce(torch.full((SIZE,), float(number), device=DEVICE), async_op=True)
        torch.full((SIZE,), -1.0, device=DEVICE)  # takes what the collective has freed too early
        kept.append(work)
    for number, work in enumerate(kept):
        work.wait()
        value = work.result()
        same(
            value[0] if isinstance(value, list) else value,
            torch.full((SIZE,), float(number * world()), device=DEVICE),
        )


def receives_into_memory_in_use() -> None:
    """What the receiver had queued for the memory comes first, though the message is there already."""
    with side_stream():
        room = torch.zeros(2, SIZE, device=DEVICE).t()  # with gaps, which take a second copy on the device
        if me() == 0:
            dist.send(torch.full((SIZE, 2), 7.0, device=DEVICE), 1)
        if me() == 1:
            keep_busy()
            room.fill_(-1.0)
            work = dist.irecv(room, 0)
    if me() == 1:
        assert work is not None
        work.wait()
        with side_stream():
            same(room.contiguous(), torch.full((SIZE, 2), 7.0, device=DEVICE))


COLLECTIVES = (
    *(all_reduce, broadcast, reduce, all_gather, all_gather_into_tensor, reduce_scatter_tensor),
    *(gather, scatter, all_to_all_single, coalesced),
)
MESSAGES = (send_and_recv, batch_isend_irecv)
STREAMS = (in_a_side_stream, asynchronous_in_a_side_stream, a_future_with_a_callback)


def main() -> None:
    """Run what the backend can be asked for; each rank tells what was wrong, by the name of the check."""
    backend, ranks = sys.argv[1], Ranks.from_env(os.environ)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    timeout = timedelta(seconds=60)
    with rendezvous_store("auto", ranks, timeout, os.environ) as store:
        name = register() if backend == "mpi" else backend
        bound = DEVICE if backend == "nccl" else None
        size = ranks.world_size
        dist.init_process_group(
            name, store=store, rank=ranks.rank, world_size=size, timeout=timeout, device_id=bound
        )
    wrong = {}
    for collective in COLLECTIVES:
        wrong[collective.__name__] = what_is_wrong(lambda: [collective(dtype) for dtype in TYPES])  # noqa: B023
    for check in STREAMS if backend != "gloo" else ():  # its futures know no streams
        wrong[check.__name__] = what_is_wrong(check)
    if backend == "mpi":  # Gloo's messages take no memory of a GPU
        wrong["memory_that_is_freed_at_once"] = what_is_wrong(memory_that_is_freed_at_once)
        wrong["receives_into_memory_in_use"] = what_is_wrong(receives_into_memory_in_use)
        for message in MESSAGES:
            wrong[message.__name__] = what_is_wrong(lambda: [message(dtype) for dtype in TYPES])  # noqa: B023
    milliseconds = milliseconds_of_all_reduce()
    aware = backend == "mpi" and is_cuda_aware()
    tell({"wrong": wrong, "MiB": TIMED_MIB, "milliseconds": milliseconds, "cuda_aware": aware})
    dist.destroy_process_group()


def is_cuda_aware() -> bool:
    from muster.train.mpi_backend.buffers import mpi_is_cuda_aware  # noqa: PLC0415 - it initialises MPI

    return mpi_is_cuda_aware()


def milliseconds_of_all_reduce() -> float:
    """The median of five calls, after one that is not counted."""
    tensor, times = torch.zeros(TIMED_MIB << 18, device=DEVICE), []
    for _ in range(6):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(tensor)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize(DEVICE)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[1:])


def what_is_wrong(check: Callable[[], object]) -> str:
    try:
        check()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize(DEVICE)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main()
