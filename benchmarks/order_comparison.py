"""What it costs to compare the order of collectives: small ones with and without (docs/mpi-backend.md).

    mpirun -np 2 --bind-to none python benchmarks/order_comparison.py [SECONDS]

It measures for two minutes, unless SECONDS says otherwise.
Rounds of all_reduce of 4 bytes: without the comparison, with the notes alone, with both, and with both again;
each round begins with another of these, because the first of a round may be slower. The medians of the ratios
within the rounds. That of the two alike is what the noise is. Where other programs use the cores, the noise
is larger than the cost: then the median of the comparison alone says more.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import deque
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from muster.train.job.ranks import Ranks
from muster.train.job.rendezvous import rendezvous_store
from muster.train.mpi_backend import register
from muster.train.mpi_backend.work_queue import EVERY

CALLS = 2048


def main() -> None:
    """Measure, and print on rank 0."""
    ranks, patience = Ranks.from_env(os.environ), timedelta(seconds=300)
    with rendezvous_store("auto", ranks, patience, os.environ) as store:
        dist.init_process_group(
            register(), timeout=patience, store=store, rank=ranks.rank, world_size=ranks.world_size
        )
    torch.set_num_threads(1)
    group: Any = dist.distributed_c10d._get_default_group()
    queue, tensor = group._queue, torch.ones(1)
    taken: list[float] = []

    def timed(compare: Any = queue.compare) -> None:
        began = time.perf_counter()
        compare()
        taken.append(time.perf_counter() - began)

    notes, comparison = queue.notes, (queue.notes, queue.compare)
    ways: dict[str, tuple[Any, Any]] = {
        "without": (deque(maxlen=0), lambda: None),
        "notes": (notes, notes.clear),
        "compared": (notes, timed),
        "again": (notes, timed),
    }

    def seconds(way: str) -> float:
        queue.notes, queue.compare = ways[way]
        began = time.perf_counter()
        for _ in range(CALLS):
            dist.all_reduce(tensor)
        return (time.perf_counter() - began) / CALLS

    until = time.monotonic() + (float(sys.argv[1]) if len(sys.argv) > 1 else 120.0)
    rounds: list[dict[str, float]] = []
    left, order = torch.ones(1), deque(ways)
    while left.item() > 0 or len(rounds) < 2:
        rounds.append({way: seconds(way) for way in order})
        order.rotate(1)
        left.fill_(until - time.monotonic())
        dist.all_reduce(left, dist.ReduceOp.MIN)  # the same on every rank
    del rounds[0]  # which warmed up
    if ranks.rank == 0:
        base, first, second = (
            statistics.median(round_[way] for round_ in rounds) * 1e6
            for way in ("without", "compared", "again")
        )
        ratios = statistics.median(
            (each["compared"] + each["again"]) / 2 / each["without"] for each in rounds
        )
        alone = statistics.median(each["notes"] / each["without"] for each in rounds)
        noise = statistics.median(each["again"] / each["compared"] for each in rounds)
        sys.stdout.write(
            f"{statistics.median(taken) * 1e6:.1f} us for a comparison in {EVERY} calls, {len(taken)} times\n"
            f"{base:.2f} us without, {first:.2f} and {second:.2f} us with the comparison; "
            f"ratio {ratios:.3f}, of the notes {alone:.3f}, of two alike {noise:.3f}; {len(rounds)} rounds\n"
        )
    queue.notes, queue.compare = comparison
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
