"""Rank and world size of this process, read from the environment that the launcher set.

Launchers run inside each other (`mpirun -np 1 torchrun ...`, mpirun in a Slurm job), and then a process
inherits the variables of both. So a launcher's variables are a family, which is used whole or not at all: a
rank of one family and a size of another mean nothing. The families are tried in this order:

1. torchrun and torch.distributed.launch: a process with TORCHELASTIC_RUN_ID only inherited the others;
2. MPI: Open MPI's mpirun, Hydra (MPICH, Intel MPI);
3. bare RANK, WORLD_SIZE and LOCAL_RANK; where they and MPI contradict each other, that is an error;
4. a Slurm step, that is srun. A Slurm batch script has a SLURM_PROCID too, but it is one process;
5. none of them: one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .failure import TrainError
from .slurm import tasks_on_this_host


@dataclass(frozen=True, slots=True)
class Family:
    """The names of the variables in which a launcher gives a process its ranks."""

    rank: str
    size: str
    local_rank: str
    local_size: str

    @property
    def names(self) -> tuple[str, str, str, str]:
        return self.rank, self.size, self.local_rank, self.local_size

    def present(self, environ: Mapping[str, str]) -> list[str]:
        return [name for name in self.names if environ.get(name)]


# https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html; PMIX_RANK comes with no size.
MPI_FAMILIES = {
    "mpirun": Family(*(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
    "hydra": Family("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}
_TORCH = Family("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
FAMILIES = {
    "torchrun": _TORCH,
    **MPI_FAMILIES,
    "env": _TORCH,
    # Not SLURM_NTASKS: a batch script has that, and SLURM_PROCID=0, without being a step.
    "srun": Family("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
}
LAUNCHERS = ("auto", *FAMILIES, "single")
# The rank of launchers whose variables are not read: PMIx (prterun, srun --mpi=pmix) has no size; PALS,
# MVAPICH2 and jsrun were never tried.
RANKS_ALONE = ("PMIX_RANK", "PALS_RANKID", "MV2_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK")
TO_DO = "start the ranks with mpirun, torchrun or srun, or set RANK and WORLD_SIZE for each"


@dataclass(frozen=True, slots=True)
class Ranks:
    """A process's number among all (`rank` of `world_size`) and among those on its host (`local_...`).

    `launcher` is a key of FAMILIES, or "spawn" or "single". `missing` names the local variables that are not
    set: until on_host, those numbers are the ones of a single host.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    launcher: str
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.world_size and 0 <= self.local_rank < self.local_world_size):
            raise TrainError(f"{self.launcher} set impossible ranks: {self}")

    def __str__(self) -> str:
        place = f"rank {self.rank} of {self.world_size}"
        return f"{place}, local rank {self.local_rank} of {self.local_world_size}"

    @property
    def from_mpi(self) -> bool:
        """Whether an MPI started this process, so that mpi4py joins it to the others."""
        return self.launcher in MPI_FAMILIES

    def on_host(self, ranks: Sequence[int]) -> Ranks:
        """Return the same with what was missing, where `ranks` are those of this host, in order."""
        return replace(
            self,
            local_rank=ranks.index(self.rank) if _TORCH.local_rank in self.missing else self.local_rank,
            local_world_size=len(ranks) if _TORCH.local_size in self.missing else self.local_world_size,
            missing=(),
        )

    @classmethod
    def from_env(cls, environ: Mapping[str, str], launcher: str = "auto") -> Ranks:
        """Read the family of `launcher`, one of LAUNCHERS; "auto" takes the first that is complete.

        Raises TrainError if a family is incomplete and no other is complete, if a value is not a number, if
        bare variables contradict MPI's, or if a launcher has set a rank, but no size.
        """
        if launcher == "single":
            return cls(0, 1, 0, 1, "single")
        if launcher != "auto":
            return _read(environ, launcher)
        if "TORCHELASTIC_RUN_ID" in environ:
            return _read(environ, "torchrun")
        whole = {name: _read(environ, name) for name in FAMILIES if _is_whole(environ, name)}
        mpi = next((whole[name] for name in MPI_FAMILIES if name in whole), None)
        bare, step = whole.get("env"), whole.get("srun")
        if bare and step and _agree(bare, step):  # a step whose ranks have the bare names too
            bare = step
        return _agreed(mpi, bare) or step or _alone(environ)


def _agreed(mpi: Ranks | None, bare: Ranks | None) -> Ranks | None:
    """Choose between MPI's variables and bare ones; mpirun of one process may just wrap another launcher."""
    if mpi is None or bare is None:
        return mpi or bare
    if _agree(mpi, bare):
        return mpi
    if mpi.world_size > 1:
        raise TrainError(
            f"{mpi.launcher} says {mpi}, but RANK, WORLD_SIZE and LOCAL_RANK say {bare}\n"
            f"unset those three, or choose: --launcher {mpi.launcher} or --launcher env"
        )
    return bare if bare.world_size > 1 else mpi


def _alone(environ: Mapping[str, str]) -> Ranks:
    """Return the ranks of a single process; raises TrainError if anything says that it is one of several."""
    for family in (*MPI_FAMILIES.values(), _TORCH):
        if present := family.present(environ):
            raise TrainError(_incomplete(family, present))
    step = FAMILIES["srun"]
    if environ.get("SLURM_STEP_ID") and environ.get(step.size) != "1":
        raise TrainError(_incomplete(step, ["SLURM_STEP_ID", *step.present(environ)]))
    for name in RANKS_ALONE:
        if environ.get(name):
            raise TrainError(
                f"{name}={environ[name]}: a launcher started this process, but did not say of how many\n"
                f"{TO_DO}; or unset {name} if this is the only process"
            )
    return Ranks(0, 1, 0, 1, "single")


def _is_whole(environ: Mapping[str, str], launcher: str) -> bool:
    names, present = FAMILIES[launcher].names, FAMILIES[launcher].present(environ)
    needed = names[:2] if launcher == "env" else names
    return set(needed) <= set(present) and (launcher != "srun" or "SLURM_STEP_ID" in environ)


def _read(environ: Mapping[str, str], launcher: str) -> Ranks:
    """Read a family. Only bare variables may lack the local ones: no launcher that sets those set them."""
    family = FAMILIES[launcher]
    if not _is_whole(environ, launcher):
        raise TrainError(f"launched by {launcher}? {_incomplete(family, family.present(environ))}")
    missing = tuple(name for name in family.names[2:] if not environ.get(name))
    try:
        rank, size = int(environ[family.rank]), int(environ[family.size])
        if launcher == "srun":
            local_size = tasks_on_this_host(environ)
        else:  # all ranks are taken to be on one host until on_host
            local_size = size if missing else int(environ[family.local_size])
        local_rank = rank if family.local_rank in missing else int(environ[family.local_rank])
    except ValueError:
        values = ", ".join(f"{name}={environ.get(name)!r}" for name in family.names)
        raise TrainError(f"ranks must be whole numbers, got {values}") from None
    return Ranks(rank, size, local_rank, local_size, launcher, missing if size > 1 else ())


def _incomplete(family: Family, present: list[str]) -> str:
    missing = ", ".join(name for name in family.names if name not in present)
    return f"{', '.join(present) or 'none of its variables'} set without {missing}\n{TO_DO}"


def _agree(one: Ranks, other: Ranks) -> bool:
    """Whether both say the same of this process, as far as both know."""
    same = (one.rank, one.world_size) == (other.rank, other.world_size)
    return same and (bool(one.missing or other.missing) or one.local_rank == other.local_rank)


def remark(environ: Mapping[str, str], ranks: Ranks) -> str | None:
    """Return a line about a surprise in `ranks` for this environment; None if there is none."""
    if ranks.launcher == "single" and environ.get("SLURM_JOB_ID"):
        return "one process: a Slurm batch script is no step of its job; use srun or mpirun to start more"
    inherited = [name for name in (*MPI_FAMILIES, "srun") if _is_whole(environ, name)]
    if ranks.launcher == "torchrun" and inherited:
        return f"launched by torchrun; what it inherited from {' and '.join(inherited)} is ignored"
    return None
