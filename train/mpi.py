"""What this package asks of mpi4py before anything else; importing this initialises MPI."""

from __future__ import annotations

import os
from typing import TypeVar

import torch
from torch import nn

from .errors import TrainError
from .ranks import Ranks

# Open MPI waits in a loop. Where ranks outnumber the cores, it must give the core away to whoever works; by
# itself it does so only where they outnumber the slots, which a hosts file may set at will. Elsewhere that
# makes small collectives several times slower.
if int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1")) > (os.cpu_count() or 1):
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")

from mpi4py import MPI

__all__ = ["MPI", "broadcast", "broadcast_weights", "communicator"]

T = TypeVar("T")


def communicator(ranks: Ranks) -> MPI.Intracomm:
    """Return the communicator of all ranks.

    Raises TrainError where MPI did not start them, or is another than mpi4py's: then each believes that it is
    alone.
    """
    world = MPI.COMM_WORLD
    if (world.size, world.rank) != (ranks.world_size, ranks.rank):
        raise TrainError(
            f"{ranks.launcher} says {ranks}, but to MPI this is rank {world.rank} of {world.size}\n"
            "what goes over MPI needs the ranks started by the mpirun of the MPI that mpi4py loads"
        )
    return world


def broadcast(value: T, ranks: Ranks) -> T:
    """Return rank 0's `value` on every rank, told over MPI, which needs no address."""
    told: T = communicator(ranks).bcast(value)
    return told


def broadcast_weights(network: nn.Module, comm: MPI.Intracomm) -> None:
    """Give every rank rank 0's weights and buffers, as bytes: MPI need not know their type."""
    for tensor in network.state_dict().values():
        told = tensor.detach().cpu().contiguous()
        comm.Bcast(told.reshape(-1).view(torch.uint8).numpy())
        tensor.copy_(told)
