"""The collective operations of nccl-tests for buffers of any size: how to call each, and its right result.

Torch does all_reduce, reduce and broadcast in place alone, and alltoall, sendrecv and hypercube out of place
alone. The other way has a copy more, as in a program that needs it, and the copy is timed too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

PERIOD = 7
TYPES = {
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "float": torch.float32,
    "double": torch.float64,
}
"""The types of nccl-tests that torch has, by the names there."""
REDUCTIONS = {"sum": "SUM", "prod": "PRODUCT", "max": "MAX", "min": "MIN", "avg": "AVG"}


def named(new: str, old: str) -> Callable[..., object]:
    """Return the function of torch.distributed by its new name, since torch 2.13, or by its old one."""
    function: Callable[..., object] = getattr(dist, new, None) or getattr(dist, old)
    return function


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: `count` elements for each rank, or for each part of what a rank sends or gets."""

    rank: int
    ranks: int
    device: torch.device
    dtype: torch.dtype
    count: int
    root: int
    redop: str
    in_place: bool

    def filled(self, seed: int, count: int | None = None) -> torch.Tensor:
        """Return the numbers of a seed, [count]: small, and different from their neighbours."""
        return self.tiled([self.number(seed, place) for place in range(PERIOD)], count)

    def number(self, seed: int, place: int) -> int:
        """Return the number at a place; a product of many stays small."""
        if self.redop == "prod":
            return 2 if seed < 3 and place % 2 else 1
        return (seed + place) % 5 + 1

    def tiled(self, numbers: list[float], count: int | None = None) -> torch.Tensor:
        """Return `numbers` again and again, [count]; a number too large for an integer type wraps."""
        wanted = self.count if count is None else count
        kind = torch.float64 if any(isinstance(number, float) for number in numbers) else torch.int64
        tile = torch.tensor(numbers, dtype=kind).to(self.dtype).to(self.device)
        return tile.repeat(-(-wanted // PERIOD))[:wanted]

    def space(self, parts: int = 1) -> torch.Tensor:
        """Return room for `parts` parts, [parts * count]."""
        return torch.zeros(parts * self.count, dtype=self.dtype, device=self.device)

    def part(self, buffer: torch.Tensor, number: int) -> torch.Tensor:
        """Return one part of a buffer: a view, [count]."""
        return self.parts(buffer, number, 1)

    def parts(self, buffer: torch.Tensor, first: int, number: int) -> torch.Tensor:
        """Return parts of a buffer: a view, [number * count]."""
        return buffer[first * self.count : (first + number) * self.count]

    def reduced(self, seed: Callable[[int], int] = int) -> torch.Tensor:
        """Return the reduction of all ranks' numbers, [count]; `seed` gives the seed of a rank."""
        columns = [[self.number(seed(rank), place) for rank in range(self.ranks)] for place in range(PERIOD)]
        reduce: dict[str, Callable[[list[int]], float]] = {
            "sum": sum,
            "prod": math.prod,
            "max": max,
            "min": min,
            "avg": lambda numbers: float(sum(numbers)) / len(numbers),
        }
        return self.tiled([reduce[self.redop](column) for column in columns])


@dataclass(frozen=True, slots=True)
class Prepared:
    """An operation with its buffers. `fill` sets them; after one `call`, `got` should be `right`."""

    fill: Callable[[], object]
    call: Callable[[], object]
    got: torch.Tensor
    right: torch.Tensor


@dataclass(frozen=True, slots=True)
class Timed:
    """An operation. `parts`: its size counts the parts of all ranks.

    `alg` and `bus` for n ranks: algbw is size / time times the first, busbw is algbw times the second.
    """

    name: str
    prepare: Callable[[Case], Prepared]
    bus: Callable[[int], float]
    alg: Callable[[int], float] = lambda ranks: 1.0
    parts: bool = False
    reduces: bool = False
    rooted: bool = False
    powers_of_two: bool = False


def _in_place_alone(case: Case, run: Callable[[torch.Tensor], object], right: torch.Tensor) -> Prepared:
    """Prepare what torch does in place: out of place, the copy is timed too."""
    sent, got = case.filled(case.rank), case.space()

    def call() -> None:
        if not case.in_place:
            got.copy_(sent)
        run(got)

    return Prepared(lambda: got.copy_(sent), call, got, right)


def _all_reduce(case: Case) -> Prepared:
    how = _how(case)
    return _in_place_alone(case, lambda tensor: dist.all_reduce(tensor, how), case.reduced())


def _reduce(case: Case) -> Prepared:
    how, here = _how(case), case.rank == case.root
    prepared = _in_place_alone(
        case, lambda tensor: dist.reduce(tensor, case.root, how), case.reduced() if here else case.space()
    )
    return prepared if here else _unchecked(prepared)


def _unchecked(prepared: Prepared) -> Prepared:
    """Nothing is promised about the buffers of this rank."""
    nothing = prepared.got[:0]
    return Prepared(prepared.fill, prepared.call, nothing, nothing)


def _broadcast(case: Case) -> Prepared:
    return _in_place_alone(case, lambda tensor: dist.broadcast(tensor, case.root), case.filled(case.root))


def _all_gather(case: Case) -> Prepared:
    got = case.space(case.ranks)
    sent = case.part(got, case.rank) if case.in_place else case.space()
    run = named("all_gather_single", "all_gather_into_tensor")
    right = torch.cat([case.filled(rank) for rank in range(case.ranks)])
    return Prepared(lambda: sent.copy_(case.filled(case.rank)), lambda: run(got, sent), got, right)


def _reduce_scatter(case: Case) -> Prepared:
    sent, how = case.space(case.ranks), _how(case)
    got = case.part(sent, case.rank) if case.in_place else case.space()
    run = named("reduce_scatter_single", "reduce_scatter_tensor")
    full = torch.cat([case.filled(case.rank + part) for part in range(case.ranks)])
    right = case.reduced(lambda rank: rank + case.rank)
    return Prepared(lambda: sent.copy_(full), lambda: run(got, sent, how), got, right)


def _gather(case: Case) -> Prepared:
    here, got = case.rank == case.root, case.space(case.ranks)
    sent = case.part(got, case.rank) if case.in_place and here else case.space()
    rooms = [case.part(got, rank) for rank in range(case.ranks)] if here else None
    right = torch.cat([case.filled(rank) for rank in range(case.ranks)])
    prepared = Prepared(
        lambda: sent.copy_(case.filled(case.rank)),
        lambda: dist.gather(sent, rooms, dst=case.root),
        *(got, right),
    )
    return prepared if here else _unchecked(prepared)


def _scatter(case: Case) -> Prepared:
    here, sent = case.rank == case.root, case.space(case.ranks)
    got = case.part(sent, case.rank) if case.in_place and here else case.space()
    parts = [case.part(sent, rank) for rank in range(case.ranks)] if here else None
    full = torch.cat([case.filled(rank) for rank in range(case.ranks)])
    return Prepared(
        lambda: sent.copy_(full),
        lambda: dist.scatter(got, parts, src=case.root),
        *(got, case.filled(case.rank)),
    )


def _alltoall(case: Case) -> Prepared:
    full = torch.cat([case.filled(3 * case.rank + rank) for rank in range(case.ranks)])
    right = torch.cat([case.filled(3 * rank + case.rank) for rank in range(case.ranks)])
    return _out_of_place_alone(case, full, right, dist.all_to_all_single)


def _out_of_place_alone(
    case: Case,
    full: torch.Tensor,
    right: torch.Tensor,
    run: Callable[[torch.Tensor, torch.Tensor], object],
) -> Prepared:
    """Prepare what torch does out of place: in place, a copy of the buffer is made and sent."""
    sent, got = full.clone(), torch.zeros_like(full)

    def call() -> None:
        if case.in_place:
            sent.copy_(got)
        run(got, sent)

    return Prepared(lambda: got.copy_(full), call, got, right)


def _sendrecv(case: Case) -> Prepared:
    left, right = (case.rank - 1) % case.ranks, (case.rank + 1) % case.ranks

    def run(got: torch.Tensor, sent: torch.Tensor) -> None:
        _exchange(sent, right, got, left)

    return _out_of_place_alone(case, case.filled(case.rank), case.filled(left), run)


def _hypercube(case: Case) -> Prepared:
    """All gather by exchanges with the neighbours in a hypercube: the ranks whose number differs in a bit."""
    got, sent = case.space(case.ranks), case.filled(case.rank)
    mine = case.part(got, case.rank)

    def fill() -> None:
        got.zero_()
        mine.copy_(sent)

    def call() -> None:
        if not case.in_place:
            mine.copy_(sent)
        mask = 1
        while mask < case.ranks:
            first, peer = case.rank & ~(mask - 1), case.rank ^ mask
            ours, theirs = (case.parts(got, start, mask) for start in (first, first ^ mask))
            _exchange(ours, peer, theirs, peer)
            mask *= 2

    right = torch.cat([case.filled(rank) for rank in range(case.ranks)])
    return Prepared(fill, call, got, right)


def _exchange(sent: torch.Tensor, to: int, got: torch.Tensor, source: int) -> None:
    """Send and receive at the same time."""
    both = [dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, got, source)]
    for request in dist.batch_isend_irecv(both):
        request.wait()


def _how(case: Case) -> dist.ReduceOp:
    how: dist.ReduceOp = getattr(dist.ReduceOp, REDUCTIONS[case.redop])
    return how


def _all_but_one(ranks: int) -> float:
    return (ranks - 1) / ranks


def _whole(ranks: int) -> float:
    return 1.0


OPERATIONS = (
    Timed("all_reduce", _all_reduce, lambda ranks: 2 * (ranks - 1) / ranks, reduces=True),
    Timed("all_gather", _all_gather, _all_but_one, parts=True),
    Timed("broadcast", _broadcast, _whole, rooted=True),
    Timed("reduce", _reduce, _whole, reduces=True, rooted=True),
    Timed("reduce_scatter", _reduce_scatter, _all_but_one, parts=True, reduces=True),
    Timed("alltoall", _alltoall, _all_but_one, parts=True),
    Timed("gather", _gather, _all_but_one, parts=True, rooted=True),
    Timed("scatter", _scatter, _all_but_one, parts=True, rooted=True),
    Timed("sendrecv", _sendrecv, _whole),
    Timed("hypercube", _hypercube, _whole, _all_but_one, parts=True, powers_of_two=True),
)
"""By the names of nccl-tests; the factors of busbw are those of its doc/PERFORMANCE.md and sources."""
