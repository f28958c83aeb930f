"""Ways in which a rank of the MPI backend fails: `mpirun -np 3 python -m tests.train.failing_rank WAY`.

Rank 1 fails; the others are in a collective, or come to one. Nothing here ends the job but the backend: the
program uses torch alone, as any program would.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from muster.train.job.ranks import Ranks
from muster.train.job.rendezvous import rendezvous_store
from muster.train.mpi_backend import register

TIMEOUT = timedelta(seconds=100)


def raises() -> None:
    raise ValueError("out of paper")


def leaves() -> None:
    sys.exit(3)


def destroys() -> None:
    """It takes part in nothing more, but its process goes on."""
    dist.destroy_process_group()
    time.sleep(100)


def dawdles() -> None:
    time.sleep(100)


def misses(steps: int = 10) -> None:
    """It leaves one broadcast out, and goes on with the values of the step before."""
    for step in range(steps):
        if dist.get_rank() == 0 or step != 2:
            dist.broadcast(torch.full((4,), float(step)), src=0)
        dist.all_reduce(torch.ones(1))


def misses_early() -> None:
    """The job is found out long before it ends."""
    misses(10**9)


def unlike_and_gone() -> None:
    """Both broadcast from themselves, which waits for nobody; rank 1 has left when rank 0 compares."""
    dist.broadcast(torch.ones(4), src=dist.get_rank())
    time.sleep(4 * (1 - dist.get_rank()))
    sys.exit(0)


TOGETHER = (misses, misses_early, unlike_and_gone)
"""The ways in which every rank takes part."""


def main() -> None:
    way = globals()[sys.argv[1]]
    ranks = Ranks.from_env(os.environ)
    with rendezvous_store("auto", ranks, TIMEOUT, os.environ) as store:
        dist.init_process_group(
            register(), timeout=TIMEOUT, store=store, rank=ranks.rank, world_size=ranks.world_size
        )
        # Only a rank that dawdles is found by a time-out. In it the others have to say that they have come.
        group = dist.new_group(timeout=timedelta(seconds=5)) if way is dawdles else None
        dist.barrier()
        if ranks.rank == 1 or way in TOGETHER:
            sys.stderr.write(f"fails at {time.time()}\n")
            sys.stderr.flush()
            way()
        dist.all_reduce(torch.ones(1000), group=group)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
