"""The collective operations that trainings use, of any size: the call of each, and its right result.

As in torch, all_reduce and broadcast work in place, the others from one buffer to another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

PERIOD = 7
TYPES = {"half": torch.float16, "bfloat16": torch.bfloat16, "float": torch.float32, "double": torch.float64}
"""By the names of nccl-tests."""


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

    def filled(self, seed: int) -> torch.Tensor:
        """Return the numbers of a seed, [count]: small, and different from their neighbours."""
        return self._tiled([_number(seed, place) for place in range(PERIOD)])

    def summed(self, first: int = 0) -> torch.Tensor:
        """Return the sum of the numbers of all ranks, [count]; the seed of rank 0 is `first`."""
        seeds = range(first, first + self.ranks)
        return self._tiled([sum(_number(seed, place) for seed in seeds) for place in range(PERIOD)])

    def parts(self, seed: Callable[[int], int]) -> torch.Tensor:
        """Return a part for each rank, [ranks * count]; `seed` gives the seed of a rank's part."""
        return torch.cat([self.filled(seed(rank)) for rank in range(self.ranks)])

    def _tiled(self, numbers: list[int]) -> torch.Tensor:
        tile = torch.tensor(numbers).to(self.dtype).to(self.device)
        return tile.repeat(-(-self.count // PERIOD))[: self.count]


def _number(seed: int, place: int) -> int:
    return (seed + place) % 5 + 1


@dataclass(frozen=True, slots=True)
class Prepared:
    """An operation with its buffers. `fill` sets them; after one `call`, `got` should be `right`."""

    fill: Callable[[], object]
    call: Callable[[], object]
    got: torch.Tensor
    right: torch.Tensor


@dataclass(frozen=True, slots=True)
class Timed:
    """An operation. `parts`: its size counts the parts of all ranks. `bus`: busbw / algbw of n ranks."""

    name: str
    prepare: Callable[[Case], Prepared]
    bus: Callable[[int], float]
    parts: bool = False


def _in_place(case: Case, run: Callable[[torch.Tensor], object], right: torch.Tensor) -> Prepared:
    sent, got = case.filled(case.rank), torch.zeros_like(right)
    return Prepared(lambda: got.copy_(sent), lambda: run(got), got, right)


def _between(
    sent: torch.Tensor, right: torch.Tensor, run: Callable[[torch.Tensor, torch.Tensor], object]
) -> Prepared:
    """Prepare an operation that gets `right` when it sends `sent`."""
    got = torch.zeros_like(right)
    return Prepared(got.zero_, lambda: run(got, sent), got, right)


def _all_reduce(case: Case) -> Prepared:
    return _in_place(case, dist.all_reduce, case.summed())


def _broadcast(case: Case) -> Prepared:
    return _in_place(case, lambda tensor: dist.broadcast(tensor, 0), case.filled(0))


def _all_gather(case: Case) -> Prepared:
    run = named("all_gather_single", "all_gather_into_tensor")
    return _between(case.filled(case.rank), case.parts(int), run)


def _reduce_scatter(case: Case) -> Prepared:
    run = named("reduce_scatter_single", "reduce_scatter_tensor")
    return _between(case.parts(lambda part: case.rank + part), case.summed(case.rank), run)


def _alltoall(case: Case) -> Prepared:
    sent, right = case.parts(lambda part: 3 * case.rank + part), case.parts(lambda rank: 3 * rank + case.rank)
    return _between(sent, right, dist.all_to_all_single)


def _sendrecv(case: Case) -> Prepared:
    left, right = (case.rank - 1) % case.ranks, (case.rank + 1) % case.ranks

    def run(got: torch.Tensor, sent: torch.Tensor) -> None:
        both = [dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, got, left)]
        for request in dist.batch_isend_irecv(both):
            request.wait()

    return _between(case.filled(case.rank), case.filled(left), run)


def _all_but_one(ranks: int) -> float:
    return (ranks - 1) / ranks


def _whole(ranks: int) -> float:
    return 1.0


OPERATIONS = (
    Timed("all_reduce", _all_reduce, lambda ranks: 2 * (ranks - 1) / ranks),
    Timed("all_gather", _all_gather, _all_but_one, parts=True),
    Timed("reduce_scatter", _reduce_scatter, _all_but_one, parts=True),
    Timed("alltoall", _alltoall, _all_but_one, parts=True),
    Timed("broadcast", _broadcast, _whole),
    Timed("sendrecv", _sendrecv, _whole),
)
"""By the names of nccl-tests; the factors of busbw are those of its doc/PERFORMANCE.md and sources."""
