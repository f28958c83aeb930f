"""The collective operations, each with the right result to check it by.

In operations that move numbers, the number of rank r is 2r + 1. Every function returns pairs of tensors: the
result and the right one.
"""

from __future__ import annotations

import functools
import math
import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from muster.deploy.features.bench.programs.timed_operations import named

Pairs = list[tuple[torch.Tensor, torch.Tensor]]
LATE = 0.1  # seconds


@dataclass(frozen=True, slots=True)
class World:
    """The ranks, and the kind of tensor that they exchange."""

    rank: int
    size: int
    device: torch.device
    dtype: torch.dtype

    @property
    def last(self) -> int:
        return self.size - 1

    def tensor(self, *numbers: int) -> torch.Tensor:
        """Return the numbers as a tensor, [n]; a number too large for an integer type wraps, as sums do."""
        kind = torch.float64 if any(isinstance(number, float) for number in numbers) else torch.int64
        return torch.tensor(numbers, dtype=kind).to(self.dtype).to(self.device)

    def own(self) -> torch.Tensor:
        return self.tensor(moved(self.rank))

    def space(self) -> torch.Tensor:
        """Return room for one number."""
        return self.tensor(0)


@dataclass(frozen=True, slots=True)
class Operation:
    """`lesson` explains it in a line; `dtype` is the type that the tool shows it with."""

    name: str
    lesson: str
    run: Callable[[World], Pairs]
    dtype: torch.dtype = torch.float32


def moved(rank: int) -> int:
    """Return the number of `rank` in operations that move numbers; never 0, which empty buffers hold."""
    return 2 * rank + 1


def _send_recv(world: World) -> Pairs:
    message = world.own() if world.rank == 0 else world.space()
    if world.rank > 0:
        dist.recv(message, src=world.rank - 1)
    if world.rank < world.last:
        dist.send(message, dst=world.rank + 1)
    return [(message, world.tensor(moved(0)))]


def _isend_irecv(world: World) -> Pairs:
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    if world.size == 1:
        return []
    # Both must live until the wait: torch 2.6's own MPI backend keeps no reference to what it sends.
    message, got = world.own(), world.space()
    requests = [dist.isend(message, dst=right), dist.irecv(got, src=left)]
    for request in requests:
        if request is not None:
            request.wait()
    return [(got, world.tensor(moved(left)))]


def _broadcast(world: World) -> Pairs:
    got = world.own() if world.rank == world.last else world.space()
    dist.broadcast(got, src=world.last)
    return [(got, world.tensor(moved(world.last)))]


def _all_gather(world: World) -> Pairs:
    got = [world.space() for _ in range(world.size)]
    dist.all_gather(got, world.own())
    return [(received, world.tensor(moved(rank))) for rank, received in enumerate(got)]


def _all_gather_into_tensor(world: World) -> Pairs:
    got = world.tensor(*[0] * world.size)
    named("all_gather_single", "all_gather_into_tensor")(got, world.own())
    return [(got, world.tensor(*map(moved, range(world.size))))]


def _gather(world: World) -> Pairs:
    got = [world.space() for _ in range(world.size)] if world.rank == 0 else None
    dist.gather(world.own(), got, dst=0)
    return [(received, world.tensor(moved(rank))) for rank, received in enumerate(got or [])]


def _scatter(world: World) -> Pairs:
    parts = [world.tensor(moved(rank)) for rank in range(world.size)] if world.rank == 0 else None
    got = world.space()
    dist.scatter(got, parts, src=0)
    return [(got, world.own())]


def _table(world: World, row: int) -> list[int]:
    """Return the numbers of rank `row` for each rank: small, and different from their neighbours."""
    return [(3 * row + 5 * column) % 7 + 1 for column in range(world.size)]


def _reduce_scatter(world: World) -> Pairs:
    got = world.space()
    dist.reduce_scatter(got, [world.tensor(number) for number in _table(world, world.rank)])
    return [(got, world.tensor(_column_sum(world)))]


def _reduce_scatter_tensor(world: World) -> Pairs:
    got = world.space()
    named("reduce_scatter_single", "reduce_scatter_tensor")(got, world.tensor(*_table(world, world.rank)))
    return [(got, world.tensor(_column_sum(world)))]


def _column_sum(world: World) -> int:
    return sum(_table(world, row)[world.rank] for row in range(world.size))


def _all_to_all(world: World) -> Pairs:
    got = [world.space() for _ in range(world.size)]
    dist.all_to_all(got, [world.tensor(number) for number in _table(world, world.rank)])
    return [(received, world.tensor(_table(world, row)[world.rank])) for row, received in enumerate(got)]


def _all_to_all_single(world: World) -> Pairs:
    got = world.tensor(*[0] * world.size)
    dist.all_to_all_single(got, world.tensor(*_table(world, world.rank)))
    return [(got, world.tensor(*[_table(world, row)[world.rank] for row in range(world.size)]))]


def _barrier(world: World) -> Pairs:
    """The last rank comes LATE: no rank may leave before that, with half of LATE allowed for clock skew."""
    if world.rank == world.last:
        time.sleep(LATE)
    came = torch.tensor([_milliseconds()], device=world.device)
    dist.barrier()
    went_on = _milliseconds()
    dist.broadcast(came, src=world.last)
    waited = went_on >= came.item() - 500 * LATE
    return [(torch.tensor([waited]), torch.tensor([True]))]


def _milliseconds() -> int:
    return round(1000 * time.time())


REDUCTIONS: dict[str, tuple[Callable[[Sequence[int]], float], str, torch.dtype]] = {
    "SUM": (sum, "the sum", torch.float32),
    "PRODUCT": (math.prod, "the product", torch.float32),
    "MIN": (min, "the smallest", torch.float32),
    "MAX": (max, "the largest", torch.float32),
    "AVG": (lambda numbers: sum(numbers) // len(numbers), "the mean", torch.float32),
    "BAND": (lambda numbers: functools.reduce(operator.and_, numbers), "the bits that all have", torch.int32),
    "BOR": (lambda numbers: functools.reduce(operator.or_, numbers), "the bits that any has", torch.int32),
    "BXOR": (
        lambda numbers: functools.reduce(operator.xor, numbers),
        "the bits that an odd number of them has",
        torch.int32,
    ),
}


def _numbers(world: World, name: str) -> list[int]:
    """Return the number of each rank in the reduction `name`; no two reductions have the same result."""
    if world.dtype == torch.bool:
        return [int(rank > 0) for rank in range(world.size)]
    if name == "PRODUCT":  # small enough for every type, at any number of ranks
        return [2 if rank < 3 else 1 for rank in range(world.size)]
    if name.startswith("B"):
        return [2 * rank + 3 for rank in range(world.size)]
    return [moved(rank) for rank in range(world.size)]  # whose mean is whole


def _reduction(name: str, *, everywhere: bool) -> Callable[[World], Pairs]:
    """Return the reduction `name` with the result on every rank or on rank 0 alone."""

    def run(world: World) -> Pairs:
        numbers = _numbers(world, name)
        got = world.tensor(numbers[world.rank])
        how = getattr(dist.ReduceOp, name)
        if everywhere:
            dist.all_reduce(got, how)
        else:
            dist.reduce(got, 0, how)
        right = world.tensor(int(REDUCTIONS[name][0](numbers)))
        return [(got, right)] if everywhere or world.rank == 0 else []

    return run


def _reductions() -> list[Operation]:
    operations = []
    for name, (_, what, dtype) in REDUCTIONS.items():
        lesson = f"rank 0 alone gets {what} of the ranks' numbers"
        operations.append(Operation(f"reduce {name}", lesson, _reduction(name, everywhere=False), dtype))
    return operations


def _all_reductions() -> list[Operation]:
    operations = []
    for name, (_, what, dtype) in REDUCTIONS.items():
        lesson = f"every rank gets {what} of the ranks' numbers"
        operations.append(Operation(f"all_reduce {name}", lesson, _reduction(name, everywhere=True), dtype))
    return operations


OPERATIONS = (
    Operation("send, recv", "a message goes from rank to rank; each call waits until it is done", _send_recv),
    Operation(
        "isend, irecv",
        "all pass to the right at once: begin both, then wait, else a ring deadlocks",
        _isend_irecv,
    ),
    Operation("broadcast", "one rank's number, here the last's, goes to every rank", _broadcast),
    *_reductions(),
    *_all_reductions(),
    Operation("gather", "rank 0 gets every rank's number, in the order of the ranks", _gather),
    Operation("all_gather", "every rank gets every rank's number", _all_gather),
    Operation(
        "all_gather_into_tensor", "the same into one flat tensor, without a list", _all_gather_into_tensor
    ),
    Operation("scatter", "rank 0 deals a list out, a number to each rank", _scatter),
    Operation(
        "reduce_scatter", "each rank brings a list; rank i gets the sum of the i-th numbers", _reduce_scatter
    ),
    Operation(
        "reduce_scatter_tensor", "the same from one flat tensor; FSDP's gradients", _reduce_scatter_tensor
    ),
    Operation(
        "all_to_all", "each rank brings a list; rank i gets the i-th number of every rank", _all_to_all
    ),
    Operation("all_to_all_single", "the same with flat tensors: a matrix is transposed", _all_to_all_single),
    Operation("barrier", "no rank goes on before the last has come, here a tenth of a second late", _barrier),
)
