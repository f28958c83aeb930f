"""The ranks of a job, joined: `with process_group(ranks, backend="gloo") as group`."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from . import lock, values
from .backend import available, device_for
from .crosscheck import exchange, verify
from .failure import TrainError, fail_together
from .finite import FiniteLosses, all_finite
from .hardware import use_fair_share_of_cores
from .join import identity_of, join, left_in_the_end, located
from .ranks import Ranks
from .rendezvous import rendezvous_store
from .sums import VALUES, Purpose, message, read, values_of
from .timeouts import StepTimeout

T = TypeVar("T")
# How long a rank waits for the others, to join and in each collective; torch's own default is 30 minutes.
TIMEOUT = timedelta(minutes=5)
# Where files go if the launcher names no folder.
OUT = Path("runs/alone")
# Variables with the number of restarts: of muster launch --max-restarts, and of torchrun --max-restarts.
RESTARTS = ("MUSTER_RESTART", "TORCHELASTIC_RESTART_COUNT")


@dataclass(frozen=True, slots=True)
class Job:
    """The job that this process is a rank of: a joined process group, and what else the launcher set.

    `hosts` has the host name of every rank, in rank order. `store` is the key-value store of the rendezvous,
    `timeout` how long a rank waits for the others in a collective, `long_works` counts for long_work.py,
    `losses` knows whether all of this rank's training losses were finite, `step_timeout` sets the time-out
    after the first step. `sums` is the group of sums.py, if it has one of its own.

    `out` is the folder for files to keep, $MUSTER_OUT or else runs/alone of rank 0. `restart` is the number
    of the restart, 0 at first: a program that finds more continues from its newest checkpoint. `name` is the
    job's id, "" without a launch of Muster.
    """

    ranks: Ranks
    backend: str
    device: torch.device
    hosts: tuple[str, ...]
    store: Store
    timeout: timedelta = TIMEOUT
    long_works: Iterator[int] = field(default_factory=itertools.count)
    losses: FiniteLosses = field(default_factory=FiniteLosses)
    step_timeout: StepTimeout = field(default_factory=StepTimeout)
    sums: dist.ProcessGroup | None = None
    out: Path = OUT
    restart: int = 0
    name: str = ""

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
        sums: list[float] = []
        for at in range(0, len(values), VALUES):
            part = values[at : at + VALUES]
            sums += add_up(self, Purpose.SUM, *part)[: len(part)]
        return sums

    @overload
    def all_gather(self, value: T, shape: type[T], *, at_most: int = ..., what: str = ...) -> list[T]: ...
    @overload
    def all_gather(self, value: Any, *, at_most: int = ..., what: str = ...) -> list[Any]: ...
    def all_gather(
        self, value: Any, shape: Any = Any, *, at_most: int = values.AT_MOST, what: str = "values"
    ) -> list[Any]:
        """Return every rank's `value`, in rank order, on every rank. A collective.

        The values travel as JSON, never pickled. `shape` is the type that every rank's value must have: int,
        str, list[int], tuple[int, str], a dataclass of these. Without it any JSON value is taken, and a
        tuple arrives as a list. Raises TrainError, which names the rank, if a value has another type, takes
        more than `at_most` bytes, or is called something else than `what`, of which 16 letters count.
        """
        names = [f"rank {rank} ({host})" for rank, host in enumerate(self.hosts)]
        texts = values.gathered(values.encoded(value, at_most), names, self.device, at_most, what)
        return [values.decoded(text, shape, name) for text, name in zip(texts, names, strict=True)]

    def barrier(self) -> None:
        add_up(self, Purpose.BARRIER)

    @overload
    def broadcast(self, value: T, shape: type[T], *, at_most: int = ..., what: str = ...) -> T: ...
    @overload
    def broadcast(self, value: Any, *, at_most: int = ..., what: str = ...) -> Any: ...
    def broadcast(
        self, value: Any, shape: Any = Any, *, at_most: int = values.AT_MOST, what: str = "values"
    ) -> Any:
        """Return rank 0's `value` on every rank; what the others pass is ignored.

        A collective. `shape`, `at_most` and `what` are those of all_gather.
        """
        text, name = values.encoded(value, at_most) if self.rank == 0 else "", f"rank 0 ({self.hosts[0]})"
        if self.world_size == 1:
            return values.decoded(text.encode(), shape, name)
        return values.decoded(values.from_rank_0(text, name, self.device, at_most, what), shape, name)

    def seed(self, seed: int, *, stream: int | None = None) -> None:
        """Seed the random numbers of Python, numpy and torch on all devices: other streams on every rank.

        So dropout, augmentation and the workers of a DataLoader draw other numbers on every rank, the same in
        every run. Rank 0's do not depend on the number of ranks, and neither do the weights that synchronise
        gives to all from rank 0. Ranks that compute the same samples together, as in tensor parallelism, need
        the same numbers: give them the same `stream`, by default the rank.
        """
        seed_streams(seed, self.rank if stream is None else stream)

    def global_mean(
        self,
        losses: torch.Tensor,
        *,
        weight: torch.Tensor | float | None = None,
        step_total: torch.Tensor | float | None = None,
    ) -> torch.Tensor:
        """Return the mean of all ranks' `losses`: the same on every rank, for backward(). A collective.

        `losses`, of any shape, has one number for each of this rank's samples or tokens; ranks may have
        unequally many. The gradients that DistributedDataParallel or FSDP then averages over the ranks are
        those of this mean. The mean of the ranks' means would weight samples unequally. The mean of losses in
        bfloat16 or float16 is in float32: their sum need not fit into 16 bits.

        A model that returns the mean of its losses, as those of Hugging Face do, needs a `weight`: the number
        of samples or tokens, above 0, that `losses`, one number, is the mean of.

        For gradients that are accumulated over several calls, `step_total` is the number of losses, or the
        sum of the weights, that this rank has in all of them. Then the results of the calls add up to the
        mean over the whole step, and their gradients to the gradient of it, however many losses each call
        has. They must not be divided by the number of calls. Raises ValueError where it is below the number
        of losses.

        Training losses (those with a gradient) that are not finite are noted, without waiting for the device;
        check_finite raises. Raises TrainError if another rank does something else; on a GPU the other rank
        does, because this would wait for the device.
        """
        count = _count(losses, weight, step_total)
        if weight is not None:
            losses = losses.to(torch.promote_types(losses.dtype, torch.float32)) * weight
        local_sum = losses.detach().sum(dtype=torch.float64)
        if losses.requires_grad:
            self.losses.note(local_sum)
        sent = message(Purpose.MEAN, self.rank, self.device)
        both = values_of(sent)[:2]
        both[0], both[1] = local_sum, count
        dist.all_reduce(sent, group=self.sums)
        if self.device.type == "cpu":
            read(sent, Purpose.MEAN, self.hosts)
        dtype = torch.promote_types(losses.dtype, torch.float32)
        scaled_sum = losses.sum(dtype=dtype) * (self.world_size / both[1]).to(dtype)
        # The value is the mean over all ranks; the gradient is that of this rank's part.
        return scaled_sum + ((both[0] / both[1]).to(dtype) - scaled_sum.detach())

    def first_step_done(self) -> None:
        """Wait no longer than the `step_timeout` of process_group, if it has one, in every later collective.

        Call it on every rank after the first step, or after each: only the first call does something, and
        then it is a collective. Preemption.asked calls it.
        """
        self.step_timeout.first_step_done(self.barrier)

    def check_finite(self, step: int, weights: Iterable[torch.Tensor] = ()) -> None:
        """Raise TrainError, the same on every rank, if a loss or a weight of any rank is inf or nan.

        A collective that waits for the device: call it before a checkpoint, so that none is kept of a
        training that has diverged, and where a step's figures are read anyway. The losses are those of
        global_mean, and those given to `losses.note`, since the process began. `weights` are looked at as
        they are now: a step can ruin them while its loss, from before, is finite. `step` is for the message.
        """
        loss, ruined = self.losses.first_bad(), not all_finite(weights)
        if not any(add_up(self, Purpose.CHECK, float(loss >= 0), float(ruined), step=step)):
            return
        everyone = self.all_gather((loss, ruined), tuple[int, bool], what="inf or nan")
        if bad := [(loss, rank) for rank, (loss, _) in enumerate(everyone) if loss >= 0]:
            number, rank = min(bad)
            what = f"its training loss number {number + 1} since the start"
        else:
            rank, what = next(rank for rank, (_, ruined) in enumerate(everyone) if ruined), "a weight"
        raise TrainError(
            f"step {step}: inf or nan on rank {rank} ({self.hosts[rank]}): {what}; nothing more is saved\n"
            "the training diverges: lower the learning rate, clip the gradients, or look for a sample "
            "whose loss is not finite"
        )


def add_up(job: Job, purpose: Purpose, *values: float, step: int = 0) -> list[float]:
    """Add up at most VALUES values over all ranks, a collective; TrainError as `read`."""
    sent = message(purpose, job.rank, job.device, values, step)
    dist.all_reduce(sent, group=job.sums)
    return read(sent, purpose, job.hosts, step)


def _count(
    losses: torch.Tensor, weight: torch.Tensor | float | None, step_total: torch.Tensor | float | None
) -> torch.Tensor | float:
    """Return how many losses of this rank the mean of a step has; ValueError where it cannot be."""
    if weight is not None and losses.numel() != 1:
        raise ValueError(f"weight= is for a loss that is a mean: one number, not {losses.numel()}")
    here = losses.numel() if weight is None else weight
    if weight is not None and not isinstance(weight, torch.Tensor) and weight <= 0:
        raise ValueError(f"weight is {weight}: the loss must be the mean of at least one sample or token")
    if step_total is None:
        return here
    if not isinstance(step_total, torch.Tensor) and not isinstance(here, torch.Tensor) and step_total < here:
        raise ValueError(f"step_total is {step_total}, and this call alone has {here} losses")
    return step_total


def seed_streams(seed: int, stream: int) -> None:
    """Seed the global generators of Python, numpy and torch, on all devices, for one of many streams.

    numpy's SeedSequence mixes both: with seed + stream, stream 1 of seed 0 would be stream 0 of seed 1.
    Raises ValueError if one is negative.
    """
    words = np.random.SeedSequence((seed, stream)).generate_state(4, np.uint64)
    random.seed(int(words[0]))
    np.random.seed(words[1:3].view(np.uint32))
    # Of torch's CPU generator, and those of every GPU or NPU. A DataLoader seeds its workers from it.
    torch.manual_seed(int(words[3]))


@contextmanager
def process_group(
    ranks: Ranks | None = None,
    *,
    backend: str | None = None,
    init: str = "auto",
    timeout: timedelta = TIMEOUT,
    environ: Mapping[str, str] = os.environ,
    step_timeout: timedelta | None = None,
) -> Iterator[Job]:
    """Join the group for the block, then leave it.

    `ranks` are those of `environ` unless given. `backend` is one of torch.distributed's, or "auto": by the
    devices of this host; None is $MUSTER_BACKEND or "auto". `init` is where the ranks meet (rendezvous.py).
    A rank waits for the others for up to `timeout`, to join and in each collective; in collectives after the
    first step for up to `step_timeout`, which may be shorter (Job.first_step_done). Raises TrainError, on
    every rank, if a backend is missing, if the ranks cannot find each other, or if they are not the ranks of
    one job. Whatever is raised here or in the block ends the whole job, as failure.py says; a single process
    has nobody to end, and there the exception goes on to the caller.
    """
    ranks = ranks or Ranks.from_env(environ)
    with nullcontext() if ranks.world_size == 1 else fail_together():
        backend = available(backend or environ.get("MUSTER_BACKEND") or "auto")
        device = None if ranks.missing else device_for(backend, ranks)
        with rendezvous_store(init, ranks, timeout, environ) as store:
            if device is None:
                ranks = located(ranks, store, timeout)
                use_fair_share_of_cores(ranks)
                device = device_for(backend, ranks)
            identities = exchange(store, identity_of(ranks, device, environ), timeout)
            verify(identities)
            join(backend, ranks, device, timeout, store)
            names = {each.rank: each.host.partition("/")[0] for each in identities}
            hosts = tuple(names[rank] for rank in range(ranks.world_size))
            with left_in_the_end(ranks):
                by_mpi4py = backend == "mpi" and not dist.is_mpi_available()
                job = Job(
                    *(ranks, backend, device, hosts, store, timeout),
                    step_timeout=StepTimeout(step_timeout),
                    restart=_restart(environ),
                    name=environ.get("MUSTER_JOB", ""),
                    sums=dist.new_group(timeout=timeout) if by_mpi4py else None,
                )
                try:
                    yield replace(job, out=shared_folder(job, out_folder(environ)))
                finally:
                    lock.release()


def out_folder(environ: Mapping[str, str]) -> Path:
    """Return where files to keep go."""
    return Path(environ.get("MUSTER_OUT") or OUT)


def shared_folder(job: Job, folder: Path) -> Path:
    """Return the folder for files of the job: one that is relative is that of rank 0, on every rank.

    mpirun passes no variables on to other hosts, and its ranks there start in another folder. A launch of
    Muster sets $MUSTER_OUT on every host.
    """
    of_rank_0 = Path(job.broadcast(str(folder.absolute()), str, what="output folder"))
    return folder if folder.is_absolute() or folder.absolute() == of_rank_0 else of_rank_0


def _restart(environ: Mapping[str, str]) -> int:
    given = next((environ[name] for name in RESTARTS if environ.get(name)), "0")
    if not given.isdecimal():
        raise TrainError(f"{' or '.join(RESTARTS)} must be a whole number, got {given}")
    return int(given)
