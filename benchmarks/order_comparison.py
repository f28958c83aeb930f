"""What it costs to compare the order of collectives: small ones with and without (docs/mpi-backend.md).

    mpirun -np 2 --bind-to none python benchmarks/order_comparison.py [SECONDS]

It measures for two minutes, unless SECONDS says otherwise.
Rounds of all_reduce of 4 bytes, in turn without the comparison, with it, and with it; the medians of the
ratios within the rounds. That of the two alike is what the noise is. Where other programs use the cores, the
noise is larger than the cost: then the medians of the note and of the comparison alone say more.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import timeit
from array import array
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

    compared = queue.notes, timed
    without: tuple[Any, Any] = deque(maxlen=0), lambda: None

    def seconds(how: tuple[Any, Any]) -> float:
        queue.notes, queue.compare = how
        began = time.perf_counter()
        for _ in range(CALLS):
            dist.all_reduce(tensor)
        return (time.perf_counter() - began) / CALLS

    until = time.monotonic() + (float(sys.argv[1]) if len(sys.argv) > 1 else 120.0)
    rounds: list[tuple[float, float, float]] = []
    left = torch.ones(1)
    while left.item() > 0 or len(rounds) < 2:
        rounds.append((seconds(without), seconds(compared), seconds(compared)))
        left.fill_(until - time.monotonic())
        dist.all_reduce(left, dist.ReduceOp.MIN)  # the same on every rank
    del rounds[0]  # which warmed up
    if ranks.rank == 0:
        base, first, second = (statistics.median(times) for times in zip(*rounds, strict=True))
        ratios = statistics.median((b + c) / 2 / a for a, b, c in rounds)
        noise = statistics.median(c / b for _, b, c in rounds)
        least = min((b + c) / 2 for _, b, c in rounds) / min(a for a, *_ in rounds)
        note = min(timeit.repeat(lambda: array("Q", [7]).append(7), number=10_000)) / 10_000
        sys.stdout.write(
            f"{statistics.median(taken) * 1e6:.1f} us for a comparison, one in {EVERY} calls, "
            f"of {len(taken)}; at most {note * 1e6:.2f} us for a note\n"
            f"{base * 1e6:.2f} us without, {first * 1e6:.2f} and {second * 1e6:.2f} us with the comparison; "
            f"ratio {ratios:.3f}, of the least {least:.3f}, of two alike {noise:.3f}; {len(rounds)} rounds\n"
        )
    queue.notes, queue.compare = compared
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
