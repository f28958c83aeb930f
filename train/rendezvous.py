"""How the ranks find each other: a key-value store on rank 0, at MASTER_ADDR and MASTER_PORT.

torchrun sets these two. Where they are not set, under mpirun, rank 0 chooses and tells the others over MPI.

Debian builds torch without libuv, which torch's stores ask for unless told not to. The older server is as
good below some thousands of ranks, so every store here is of that kind.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import HashStore, Store, TCPStore  # type: ignore[attr-defined]  # torch has no __all__

from train.errors import TrainError
from train.ranks import Ranks

# How long a rank waits for the others, to join and in each collective; torch's own default is 30 minutes.
TIMEOUT = timedelta(minutes=5)


def join(backend: str, ranks: Ranks) -> None:
    """Initialise torch's default process group with `backend`, which is gloo, nccl or mpi.

    Raises TrainError if the ranks cannot find each other, or if MPI does not number them as `ranks` does.
    """
    if backend == "mpi":
        dist.init_process_group("mpi")  # MPI knows rank and size, and needs no store
    else:
        _join_at_store(backend, ranks)
    joined = dist.get_rank(), dist.get_world_size()
    if joined != (ranks.rank, ranks.world_size):
        raise TrainError(
            f"{ranks.launcher} says {ranks}, but MPI says rank {joined[0]} of {joined[1]}\n"
            "backend mpi needs the mpirun of the MPI that torch was built with"
        )


def _join_at_store(backend: str, ranks: Ranks) -> None:
    store = _store(ranks)
    method = None if store else "env://?use_libuv=0"
    try:
        dist.init_process_group(
            backend, method, TIMEOUT, rank=ranks.rank, world_size=ranks.world_size, store=store
        )
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        raise TrainError(f"{ranks}: could not join the others: {error}") from error


def _store(ranks: Ranks) -> Store | None:
    """Return the store where the ranks meet; None where MASTER_ADDR and MASTER_PORT say which."""
    if ranks.world_size == 1:
        return HashStore()
    given = [name for name in ("MASTER_ADDR", "MASTER_PORT") if os.environ.get(name)]
    if len(given) == 2:
        return None
    if given or ranks.launcher != "mpirun":
        raise TrainError("set both MASTER_ADDR, the address of rank 0, and MASTER_PORT, a free port there")
    return _store_told_over_mpi(ranks)


def _store_told_over_mpi(ranks: Ranks) -> Store:
    """Open a store on rank 0, on a port that the kernel chooses, and connect the other ranks to it."""
    try:
        from train.mpi import broadcast  # noqa: PLC0415 - initialises MPI, so only where it is needed
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py found no MPI library
        raise TrainError(
            f"the ranks cannot find each other: {error}\n"
            "install mpi4py, or: mpirun -x MASTER_ADDR=<address of rank 0> -x MASTER_PORT=<free port there>"
        ) from error
    if ranks.rank == 0:
        store = TCPStore("127.0.0.1", 0, None, True, TIMEOUT, wait_for_workers=False, use_libuv=False)
        broadcast((_address(ranks), store.port), ranks)
        return store
    address, port = broadcast(("", 0), ranks)
    return TCPStore(address, port, None, False, TIMEOUT, wait_for_workers=False, use_libuv=False)


def _address(ranks: Ranks) -> str:
    """Return the address at which other hosts reach this one: that of the default route, if it has one.

    Connecting a datagram socket sends nothing, it asks the routing table. 192.0.2.1 is nobody's (RFC 5737).
    """
    if ranks.local_world_size == ranks.world_size:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])
