"""The only module that imports mpi4py: importing it initialises MPI."""

from __future__ import annotations

from typing import TypeVar

from mpi4py import MPI

from train.errors import TrainError
from train.ranks import Ranks

T = TypeVar("T")


def broadcast(value: T, ranks: Ranks) -> T:
    """Return rank 0's `value` on every rank, told over MPI, which needs no address.

    Raises TrainError where mpirun and mpi4py are of different MPIs: then each rank believes that it is alone.
    """
    if MPI.COMM_WORLD.size != ranks.world_size:
        raise TrainError(
            f"{ranks.launcher} started {ranks.world_size} ranks, to MPI the job has {MPI.COMM_WORLD.size}\n"
            "use the mpirun of the MPI that mpi4py loads, or set MASTER_ADDR and MASTER_PORT"
        )
    told: T = MPI.COMM_WORLD.bcast(value)
    return told
