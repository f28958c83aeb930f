"""The launchers, and what each demands of the hosts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from ..errors import UnfitError
from ..hosts.facts import Facts
from ..hosts.hostfile import Host
from .openmpi import _mixed_versions, unfit_for_mpirun
from .torchrun import unfit_for_torch

Launcher = Literal["mpirun", "torchrun"]


LAUNCHERS: tuple[Launcher, ...] = ("mpirun", "torchrun")


def require(hosts: Iterable[Host], facts: Mapping[str, Facts], *, launcher: str) -> None:
    """Raise `UnfitError` that names every host which the launcher cannot use, and what to do there."""
    judge = unfit_for_mpirun if launcher == "mpirun" else unfit_for_torch
    reasons = [(host.name, str(reason)) for host in hosts if (reason := judge(facts[host.name]))]
    if launcher == "mpirun" and not reasons:
        reasons = _mixed_versions({host.name: facts[host.name].mpi or "" for host in hosts})
    if reasons:
        raise UnfitError(reasons)
