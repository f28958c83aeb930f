"""Which process of how many this is, read from what the launcher left in the environment.

Launchers run inside each other (`mpirun -np 1 torchrun ...`), and then a process inherits the variables of
both. So a launcher's variables are a family, taken whole or not at all: one's rank and the other's size
name nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from train.errors import TrainError

Launcher = Literal["torchrun", "mpirun", "env", "single"]

_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_OPEN_MPI = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))


@dataclass(frozen=True, slots=True)
class Ranks:
    """A process's place among all (`rank` of `world_size`) and among those on its host (`local_...`)."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    launcher: Launcher

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.world_size and 0 <= self.local_rank < self.local_world_size):
            raise TrainError(f"{self.launcher} set ranks that cannot be: {self}")

    def __str__(self) -> str:
        place = f"rank {self.rank} of {self.world_size}"
        return f"{place}, local rank {self.local_rank} of {self.local_world_size}"

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Ranks:
        """Read torchrun's variables, or Open MPI's, or bare RANK, WORLD_SIZE and LOCAL_RANK, or be alone.

        torchrun's come first: a process that has TORCHELASTIC_RUN_ID only inherited the others.
        Raises TrainError if a family is incomplete or not of numbers, or if bare variables contradict mpirun.
        """
        if "TORCHELASTIC_RUN_ID" in environ:
            return _read(environ, _TORCH, "torchrun")
        mpirun = _read(environ, _OPEN_MPI, "mpirun") if _any(environ, _OPEN_MPI) else None
        bare_names = _TORCH if environ.get("LOCAL_WORLD_SIZE") else _TORCH[:3]
        bare = _read(environ, bare_names, "env") if _any(environ, _TORCH[:3]) else None
        if mpirun and bare and mpirun.world_size > 1 and _place(mpirun) != _place(bare):
            raise TrainError(
                f"mpirun says {mpirun}, but RANK, WORLD_SIZE and LOCAL_RANK say {bare}\n"
                "unset those three, or start the program with the launcher that set them"
            )
        if bare and (mpirun is None or mpirun.world_size < bare.world_size):
            return bare
        return mpirun or cls(0, 1, 0, 1, "single")


def _read(environ: Mapping[str, str], names: tuple[str, ...], launcher: Launcher) -> Ranks:
    """Read a family: rank, size, local rank, local size; without the last, all may share this host."""
    present = [name for name in names if environ.get(name)]
    if len(present) < len(names):
        missing = ", ".join(name for name in names if name not in present)
        raise TrainError(f"{', '.join(present) or 'TORCHELASTIC_RUN_ID'} set without {missing}")
    try:
        rank, size, local_rank, *local_size = (int(environ[name]) for name in names)
    except ValueError:
        values = ", ".join(f"{name}={environ[name]!r}" for name in names)
        raise TrainError(f"ranks must be whole numbers, got {values}") from None
    return Ranks(rank, size, local_rank, local_size[0] if local_size else size, launcher)


def _any(environ: Mapping[str, str], names: tuple[str, ...]) -> bool:
    return any(environ.get(name) for name in names)


def _place(ranks: Ranks) -> tuple[int, int, int]:
    return ranks.rank, ranks.world_size, ranks.local_rank
