"""From torch's idea of a new group to its communicator."""

from __future__ import annotations

from typing import Any

from ..job.mpi_world import MPI
from .errors import MpiBackendError
from .group import MpiProcessGroup


def create_group(options: Any) -> MpiProcessGroup:
    """Make the group that `options` (c10d's DistributedBackendOptions) describes.

    Raises MpiBackendError if MPI cannot serve several threads, or numbers the ranks otherwise than torch.
    """
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise MpiBackendError(f"needs an MPI with MPI_THREAD_MULTIPLE, not {MPI.Get_library_version()}")
    ranks = list(options.global_ranks_in_group)
    comm = _of(ranks) if ranks else _of_all(options.group_rank, options.group_size)
    return MpiProcessGroup(comm, options.store, options.timeout, options.group_id or "default_pg")


def _of_all(rank: int, size: int) -> MPI.Intracomm:
    world = MPI.COMM_WORLD
    # torch 2.14 and later ask "mpi" for both, and pass -1.
    if (rank, size) not in {(world.rank, world.size), (-1, -1)}:
        raise MpiBackendError(
            f"torch says rank {rank} of {size}, but MPI says rank {world.rank} of {world.size}; "
            "start the ranks with the mpirun of the MPI that mpi4py loads"
        )
    return world.Dup()


def _of(ranks: list[int]) -> MPI.Intracomm:
    """Make a communicator of some ranks, on those alone: torch asks no others, as Comm.Create would need."""
    members = MPI.COMM_WORLD.group.Incl(ranks)
    try:
        return MPI.COMM_WORLD.Create_group(members)
    finally:
        members.Free()
