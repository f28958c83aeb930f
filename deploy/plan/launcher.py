"""The launchers, and the interface through which plans and checks use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, Protocol

from ..errors import HostError, UnfitError
from ..hosts.facts import Facts
from ..hosts.hostfile import Host
from .layout import Layout
from .openmpi import Mpirun
from .srun import Srun
from .torchrun import Torchrun

LauncherName = Literal["mpirun", "torchrun", "srun"]
LAUNCHERS: tuple[LauncherName, ...] = ("mpirun", "torchrun", "srun")


class Launcher(Protocol):
    """A program that starts the ranks of a job."""

    uses_mpi: bool
    """Whether the ranks run as an MPI job."""

    def title(self, head: Facts) -> str:
        """The name and version of the launcher on the head."""
        ...

    def unfit(self, facts: Facts) -> HostError | None:
        """The reason why a host cannot be used with this launcher; None if it can."""
        ...

    def differences(self, facts: Mapping[str, Facts]) -> list[tuple[str, str]]:
        """Hosts that cannot be used together, each with its reason."""
        ...

    def check_shape(self, backend: str, ranks: Mapping[str, int]) -> None:
        """`UsageError` for a backend, or numbers of ranks on hosts, that the launcher cannot start."""
        ...

    def command(self, host: str, layout: Layout) -> tuple[str, ...] | None:
        """The argv to run on a host; None where the head starts the ranks."""
        ...

    def environment(self, host: str, layout: Layout) -> dict[str, str]:
        """Variables for ranks and launcher on a host, besides those that every job has."""
        ...


_BY_NAME: Mapping[str, Launcher] = {"mpirun": Mpirun(), "torchrun": Torchrun(), "srun": Srun()}


def launcher_of(name: str) -> Launcher:
    """The launcher of a name in LAUNCHERS."""
    return _BY_NAME[name]


def require(hosts: Iterable[Host], facts: Mapping[str, Facts], *, launcher: Launcher) -> None:
    """Raise `UnfitError` with every host that the launcher cannot use, and what to do there."""
    used = {host.name: facts[host.name] for host in hosts}
    reasons = [(name, error.reason) for name, known in used.items() if (error := launcher.unfit(known))]
    if reasons := reasons or launcher.differences(used):
        raise UnfitError(reasons)
