"""What the programs beside this file share: the ranks meet, and three collectives end well."""

import os
import random
from time import sleep

import torch
import torch.distributed as dist

BACKEND = os.environ.get("HANG_BACKEND", "gloo")
PACE = random.Random(os.environ.get("HANG_SEED", "0")).uniform(0.4, 1.5)  # noqa: S311
"""How slow this run is: what its sleeps are multiplied by."""
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def begin() -> None:
    """Bring the ranks together, and warm up."""
    if BACKEND == "mpi":
        from muster.train.mpi_backend import NAME, register

        register()
        dist.init_process_group(NAME)
    else:
        dist.init_process_group(BACKEND)
    for _ in range(3):
        dist.all_reduce(torch.ones(4))


__all__ = ["PACE", "RANK", "SIZE", "begin", "dist", "sleep", "torch"]
