"""What a launch is asked to do."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from ..errors import UsageError
from .launcher import LauncherName
from .srun import NO_CONTAINER

# A value under a name like these is shown as *** in a plan and is written to no file of the driver.
SECRET = ("TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "AUTH", "_KEY")


_REPLACE = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


@dataclass(frozen=True, kw_only=True)
class Program:
    """What every rank runs: a module or a script of the tree, and its arguments."""

    module: str | None = None
    script: str | None = None
    args: tuple[str, ...] = ()
    mpi: str = ""
    """The place in its source that asks for MPI: `train.py:3`; empty if none was found."""
    runner: tuple[str, ...] = ()
    """What runs a script that is no Python program, such as `bash`; empty for Python."""

    def argv(self, *, abort_with_mpi: bool) -> tuple[str, ...]:
        """The arguments for Python.

        With MPI, an uncaught exception in one rank leaves the others waiting in MPI_Finalize forever;
        `python -m mpi4py` makes it an MPI_Abort (mpi4py manual, "mpi4py.run").
        """
        if self.runner:  # in place of Python, with the same process id
            return ("-c", _REPLACE, *self.runner, self.script or "", *self.args)
        runner = ("-m", "mpi4py") if abort_with_mpi else ()
        target = ("-m", self.module) if self.module else (self.script or "",)
        return (*runner, *target, *self.args)


@dataclass(frozen=True)
class Mount:
    """A folder or file of a host, and its path in the container; by default the same."""

    source: str
    at: str = ""
    read_only: bool = False

    @property
    def target(self) -> str:
        """Its path in the container."""
        return self.at or self.source


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """What the user asked for."""

    job: str
    program: Program
    launcher: LauncherName = "mpirun"
    allocation: str = ""
    """Slurm's number of the allocation that the hosts belong to; empty for hosts of a hosts file."""
    np: int | None = None
    backend: str = "auto"
    env: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    """Names in `env` whose values are never shown, even if the name does not look like that of a secret."""
    columns: int | None = None
    """Width of the driver's terminal; None if its output is not a terminal."""
    attempt: int = 0
    """The number of earlier starts of this job."""
    may_restart: bool = False
    environment: str = ""
    """The environment of packages of the ranks, by its name on every host; empty for the hosts' own."""
    packages: str = ""
    """A line about the packages of that environment."""
    record: bool = False
    """Whether each rank records its collectives, so that a hang can be explained (deploy/why)."""
    image: str = ""
    """The container image in which the ranks run; empty for the hosts themselves."""
    engine: str = ""
    """The engine that starts its container: docker, podman or apptainer; empty for what each host has."""
    mounts: tuple[Mount, ...] = ()
    """Folders and files of the hosts that the container has too, besides those of the job."""
    stdin: bool = False
    """Whether rank 0 reads the driver's standard input. The input of all other ranks is empty."""

    def __post_init__(self) -> None:
        """Refuse what no hosts could run."""
        if self.launcher == "srun" and self.image:
            raise UsageError(NO_CONTAINER)


def is_secret(name: str, hidden: Container[str]) -> bool:
    """Whether a value must not be shown: it was given as a secret, or its name sounds like one."""
    return name in hidden or any(word in name.upper() for word in SECRET)
