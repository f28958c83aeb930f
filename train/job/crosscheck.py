"""Checks that the ranks that meet are one job: each publishes who it is, and each judges them all.

An environment can be complete and wrong: an `mpirun` of another MPI than mpi4py's reports to every rank that
it is the only one, two jobs are given the same rendezvous, a shell script sets the same RANK twice. Without
this check the ranks would wait for each other until the time-out, without a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from torch.distributed import Store

from .failure import TrainError
from .values import decoded, encoded


@dataclass(frozen=True, slots=True)
class Identity:
    """What a rank publishes about itself: the numbers of its launcher, its process and its host.

    `devices` is its CUDA_VISIBLE_DEVICES, `mpi_size` the number of ranks of the job according to MPI,
    `gpu` the UUID of the GPU that it uses.
    """

    rank: int
    world_size: int
    local_rank: int
    host: str
    pid: int
    launcher: str
    devices: str | None = field(default=None)
    mpi_size: int | None = field(default=None)
    gpu: str | None = field(default=None)

    def __str__(self) -> str:
        place = f"rank {self.rank} of {self.world_size}, local rank {self.local_rank}"
        return f"{place} ({self.launcher}, process {self.pid} on {self.host.partition('/')[0]})"


def exchange(store: Store, identity: Identity, timeout: timedelta) -> list[Identity]:
    """Publish `identity` and return the identities of all ranks, in the order in which they arrived.

    They are numbered by arrival, not by rank, so that two processes with the same rank both find out. Raises
    TrainError if some do not arrive within `timeout`, or if there are too many.
    """
    mine = store.add("muster/arrived", 1)
    store.set(f"muster/identity/{mine}", encoded(identity))
    if mine > identity.world_size:
        raise TrainError(
            f"{identity} is number {mine} to arrive, of {identity.world_size}\n"
            "another job uses the same rendezvous, or an earlier job has left its file there: choose another"
        )
    keys = [f"muster/identity/{number}" for number in range(1, identity.world_size + 1)]
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:  # a TCPStore raises the subclass DistStoreError, a FileStore RuntimeError
        raise TrainError(_who_arrived(store, keys, identity, timeout)) from error
    identities = [_read(store, key) for key in keys]
    _leave_together(store, identity)
    return identities


def _read(store: Store, key: str) -> Identity:
    identity: Identity = decoded(store.get(key), Identity, f"the process at the rendezvous's {key}")
    return identity


def _who_arrived(store: Store, keys: Sequence[str], identity: Identity, timeout: timedelta) -> str:
    arrived = [_read(store, key) for key in keys if store.check([key])]
    lines = [f"{len(arrived)} of {identity.world_size} ranks arrived within {timeout.total_seconds():.0f} s:"]
    lines += [f"  {each}" for each in arrived]
    try:
        verify(arrived, of_all=False)
    except TrainError as wrong:
        return f"{wrong}\n" + "\n".join(lines)
    return "\n".join([*lines, "were the others started, and do they reach the same address?"])


def _leave_together(store: Store, identity: Identity) -> None:
    """Keep rank 0, whose process may hold the store, here until the others have read from it."""
    read = store.add("muster/read", 1)
    if read == identity.world_size:
        store.set("muster/all-read", "1")
    store.wait(["muster/all-read"])


def verify(identities: Sequence[Identity], *, of_all: bool = True) -> None:
    """Raise TrainError, the same on every rank, if these are not the ranks of one job."""
    sizes = Counter(each.world_size for each in identities)
    if len(sizes) > 1:
        _refuse("the ranks disagree on the world size", identities)
    places = Counter((each.host, each.local_rank, each.devices) for each in identities)
    ranks = Counter(each.rank for each in identities)
    if twice := [each for each in identities if ranks[each.rank] > 1]:
        _refuse(f"rank {twice[0].rank} exists more than once", twice)
    if of_all and sorted(ranks) != list(range(len(identities))):
        _refuse(f"the ranks are not numbered from 0 to {len(identities) - 1}", identities)
    if twice := [each for each in identities if places[each.host, each.local_rank, each.devices] > 1]:
        _refuse(f"local rank {twice[0].local_rank} exists more than once on a host", twice)
    if wrong := [each for each in identities if each.mpi_size not in {None, each.world_size}]:
        _refuse(
            f"to MPI the job has {wrong[0].mpi_size} ranks, not {wrong[0].world_size}: "
            "mpirun and the MPI library belong to different MPIs, or mpirun did not start these ranks",
            wrong,
        )
    gpus = Counter((each.host, each.gpu) for each in identities)
    if shared := [each for each in identities if each.gpu and gpus[each.host, each.gpu] > 1]:
        _refuse(
            "NCCL needs a GPU for each rank, and these share one",
            [each for each in shared if (each.host, each.gpu) == (shared[0].host, shared[0].gpu)],
            "start fewer ranks there, or use --backend gloo",
        )


def _refuse(
    what: str,
    identities: Sequence[Identity],
    to_do: str = "start all ranks with one launcher, and see --launcher",
) -> None:
    shown = sorted(identities, key=lambda each: (each.rank, each.pid))[:8]
    lines = [f"{what}:", *(f"  {each}" for each in shown)]
    lines += [f"  and {len(identities) - len(shown)} more"] if len(identities) > len(shown) else []
    raise TrainError("\n".join([*lines, to_do]))
