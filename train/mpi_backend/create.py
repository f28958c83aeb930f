"""Creates the process group that torch asks for, with a communicator of its ranks."""

from __future__ import annotations

from typing import Any

from .exceptions import MpiBackendError
from .library import MPI
from .process_group import MpiProcessGroup


def create_group(options: Any) -> MpiProcessGroup:
    """Make the group that `options` (c10d's DistributedBackendOptions) describes.

    Raises MpiBackendError if MPI lacks MPI_THREAD_MULTIPLE, or numbers the ranks differently from torch.
    """
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise MpiBackendError(f"needs an MPI with MPI_THREAD_MULTIPLE, not {MPI.Get_library_version()}")
    ranks = list(options.global_ranks_in_group)
    comm = _of(ranks) if ranks else _of_all(options.group_rank, options.group_size)
    return MpiProcessGroup(comm, options.store, options.timeout, options.group_id or "default_pg")


def _of_all(rank: int, size: int) -> MPI.Intracomm:
    world = MPI.COMM_WORLD
    # For a backend named "mpi", torch 2.14 and later pass -1 for both.
    if (rank, size) not in {(world.rank, world.size), (-1, -1)}:
        raise MpiBackendError(
            f"torch says rank {rank} of {size}, but MPI says rank {world.rank} of {world.size}; "
            "start the ranks with the mpirun of the MPI that mpi4py loads"
        )
    return world.Dup()


def _of(ranks: list[int]) -> MPI.Intracomm:
    """Make a communicator of some ranks; only they call this, where Comm.Create would need all."""
    members = MPI.COMM_WORLD.group.Incl(ranks)
    try:
        return MPI.COMM_WORLD.Create_group(members)
    finally:
        members.Free()
