"""The ranks of a job, joined: `with process_group("auto", ranks) as group`."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from train.errors import TrainError
from train.failure import fail_together
from train.hardware import device_for
from train.ranks import Ranks
from train.rendezvous import join

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Group:
    """A joined process group, as one rank sees it; `hosts` has the host name of every rank, in rank order."""

    ranks: Ranks
    backend: str
    device: torch.device
    hosts: tuple[str, ...]

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self.ranks.rank

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return self.ranks.world_size

    @property
    def host_count(self) -> int:
        """On how many hosts they really run."""
        return len(set(self.hosts))

    def all_reduce_sum(self, *values: float) -> list[float]:
        """Add up each value over all ranks, in float64; every rank gets the sums."""
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return [float(total) for total in sums]

    def broadcast(self, value: T) -> T:
        """Return rank 0's `value` on every rank; what the others pass is ignored. It travels pickled."""
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


@contextmanager
def process_group(backend: str, ranks: Ranks) -> Iterator[Group]:
    """Join the group for the block, then leave it; if the block raises, the whole job ends: see failure.py.

    A backend that is not there or ranks that cannot find each other are a TrainError, with the same end.
    """
    with fail_together():
        backend = available(backend)
        device = device_for(backend, ranks)
        join(backend, ranks)
        hosts = [""] * ranks.world_size
        dist.all_gather_object(hosts, socket.gethostname())
        yield Group(ranks, backend, device, tuple(hosts))
        dist.destroy_process_group()


def available(backend: str) -> str:
    """Resolve "auto", and refuse a backend that cannot work here; returns gloo, nccl or mpi."""
    if backend == "auto":
        return "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl" and not torch.cuda.is_available():
        raise TrainError("backend nccl needs a GPU that torch can see; without one use --backend gloo")
    if backend == "mpi" and not dist.is_mpi_available():
        raise TrainError(
            f"backend mpi is not built into this torch ({torch.__version__})\n"
            "use --backend gloo, also under mpirun, or a torch built with MPI, such as Debian's python3-torch"
        )
    return backend
