"""What the programs beside this file share: the ranks meet, and three collectives end well."""

import os
import random
from time import monotonic, sleep

import torch
import torch.distributed as dist

BACKEND = os.environ.get("HANG_BACKEND", "gloo")
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Pace:
    """How slow the program is: what its sleeps are multiplied by. It changes with time."""

    SECONDS = 4.0
    began = monotonic()

    def __rmul__(self, seconds: float) -> float:
        """The seconds at the pace of now."""
        nth = (monotonic() - self.began) // self.SECONDS
        return seconds * random.Random(str(nth)).uniform(0.4, 1.5)  # noqa: S311


PACE = Pace()


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
