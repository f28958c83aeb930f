"""Asks Slurm's programs what a site is like."""

from __future__ import annotations

import contextlib
import re

from ..check.slurm_site import SlurmSite, parse_config, parse_groups
from ..errors import MusterError, UsageError
from .programs import ask


def site(partition: str = "") -> SlurmSite:
    """The site of this login node; `error` if Slurm does not answer. What srun does not say is left out."""
    try:
        config = parse_config(ask("scontrol", "show", "config"))
        groups = parse_groups(ask("sinfo", "--noheader", "--format=%R|%a|%D|%T|%E"))
    except MusterError as error:
        return SlurmSite(error=error.reason)
    mpi: list[str] = []
    with contextlib.suppress(MusterError):
        mpi = mpi_plugins()
    return SlurmSite(config=config, mpi=mpi, groups=groups, partition=partition)


def mpi_plugins() -> list[str]:
    """What srun can give MPI in its ranks: `none`, `pmix`, `pmi2`."""
    return re.findall(r"^\s+(\w+)$", ask("srun", "--mpi=list"), re.MULTILINE)


def require_pmix() -> None:
    """`UsageError` where srun cannot start ranks of Open MPI 5."""
    plugins = mpi_plugins()
    if plugins and not any(name.startswith("pmix") for name in plugins):
        raise UsageError(
            f"--launcher srun: srun has no PMIx here, only {', '.join(plugins)}; "
            "use --launcher mpirun, which brings its own"
        )
