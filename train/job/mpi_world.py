"""MPI's view of the job, by mpi4py; importing this module initialises MPI."""

from __future__ import annotations

from typing import TypeVar

from ..mpi_backend.direct import MPI
from .failure import TrainError
from .ranks import Ranks
from .values import decoded, encoded

__all__ = ["MPI", "broadcast", "communicator"]

T = TypeVar("T")
MESSAGE = 512  # bytes


def communicator(ranks: Ranks) -> MPI.Intracomm:
    """Return the communicator of all ranks.

    Raises TrainError where MPI did not start the ranks, or another MPI than mpi4py's did: then MPI tells each
    rank that it is the only one.
    """
    world = MPI.COMM_WORLD
    if (world.size, world.rank) != (ranks.world_size, ranks.rank):
        raise TrainError(
            f"{ranks.launcher} says {ranks}, but to MPI this is rank {world.rank} of {world.size}\n"
            "communication over MPI needs the ranks started by the mpirun of the MPI that mpi4py loads"
        )
    return world


def broadcast(value: T, shape: type[T], ranks: Ranks) -> T:
    """Return rank 0's `value` of type `shape` on every rank; MPI needs no address for that.

    As JSON in a message of a fixed size: mpi4py's `bcast` would unpickle it.
    """
    message = bytearray(encoded(value, MESSAGE).ljust(MESSAGE).encode())
    communicator(ranks).Bcast(message)
    received: T = decoded(bytes(message), shape, "rank 0")
    return received
