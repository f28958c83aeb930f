"""Which hosts a launcher can use, and the placement of ranks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from ..errors import HostError, UnfitError, UsageError
from ..hosts.host_facts import Facts, minor
from ..hosts.hostfile import Host
from ..text.text import count, size
from .launch_plan import Launcher, PlacedRank, Placement
from .spec import LauncherName, LaunchSpec


def launcher_of(name: LauncherName) -> Launcher:
    """The launcher of a name in LAUNCHERS."""
    if name == "mpirun":
        from .openmpi import Mpirun

        return Mpirun()
    from .torchrun import Torchrun

    return Torchrun()


def unfit(host: Host, facts: Facts, launcher: Launcher) -> HostError | None:
    """The reason why the launcher cannot use a host; None if it can."""
    error = launcher.unfit(facts)
    if error is None or facts.torch or facts.mpirun or host.is_local:
        return error
    remedy = f"install a training stack there with `muster setup`, or {error.remedy}"
    return HostError(error.kind, error.text, remedy)


def require(hosts: Iterable[Host], facts: Mapping[str, Facts], *, launcher: Launcher) -> None:
    """Raise `UnfitError` with every host that the launcher cannot use, and the remedy."""
    facts_of_hosts = {host.name: facts[host.name] for host in hosts}
    reasons = [
        (host.name, error.reason)
        for host in hosts
        if (error := unfit(host, facts_of_hosts[host.name], launcher))
    ]
    if reasons := reasons or launcher.differences(facts_of_hosts):
        raise UnfitError(reasons)


def require_python(version: str, facts: Mapping[str, Facts]) -> None:
    """`UnfitError` for hosts with another Python than the one that the code of a function needs, if any."""
    needs = f"the code of the function comes from Python {version}"
    remedy = "put the function into a module of the project, or name that Python with python="
    if reasons := [
        (host, f"its ranks have Python {known.python}, and {needs}; {remedy}")
        for host, known in facts.items()
        if version and minor(known.python) != version
    ]:
        raise UnfitError(reasons)


def refuse_shared_gpus(backend: str, placement: Placement, facts: Mapping[str, Facts]) -> None:
    """`UsageError` if ranks would share a GPU with NCCL, which then refuses to work."""
    for host, ranks in placement.counts.items():
        gpus = facts[host].gpus
        if backend == "nccl" and 0 < gpus < ranks:
            raise UsageError(
                f"--backend nccl: {host} gets {count(ranks, 'rank')} and has {count(gpus, 'GPU')}, and NCCL "
                f"allows one rank on each; use at most {count(gpus, 'slot')} there, or --backend gloo"
            )


MOST_ARGUMENTS: Mapping[LauncherName, int] = {"mpirun": 120_000, "torchrun": 1_000_000}
"""Bytes. mpirun puts all arguments into one variable, for which Linux has 128 KiB; a process has 2 MiB."""


def refuse_long_arguments(spec: LaunchSpec) -> None:
    """`UsageError` for more arguments of the program than its launcher can pass on."""
    total, most = sum(len(os.fsencode(each)) + 1 for each in spec.program.args), MOST_ARGUMENTS[spec.launcher]
    if total > most:
        other = "; or add --launcher torchrun" if total <= MOST_ARGUMENTS["torchrun"] else ""
        raise UsageError(
            f"the program has {count(len(spec.program.args), 'argument')} of {size(total)}, and "
            f"{spec.launcher} passes on {size(most)}; write them into a file that the program reads{other}"
        )


def place_ranks(hosts: Sequence[Host], spec: LaunchSpec) -> Placement:
    """Fill the slots of each host in the order of the file, as mpirun's `--map-by slot` does.

    `UsageError` for a request that no cluster could run, without asking a host.
    """
    slots = sum(host.slots for host in hosts)
    if not 0 <= spec.np <= slots:
        raise UsageError(
            f"--np {spec.np}: the hosts have {count(slots, 'slot')}; raise slots= or --slots, or lower --np"
        )
    left, first = spec.np or slots, 0
    hosts_with_ranks, ranks = [], {}
    for host in hosts:
        if number := min(host.slots, left - first):
            hosts_with_ranks.append(host)
            ranks[host.name] = tuple(PlacedRank(first + local, local, host.name) for local in range(number))
            first += number
    if len(hosts_with_ranks) > 1 and (local := [host.name for host in hosts_with_ranks if host.is_local]):
        raise UsageError(
            f"{local[0]} is a different machine on every host; write a host name in the hosts file"
        )
    spares = hosts[len(hosts_with_ranks) :][: spec.spares]
    placement = Placement(tuple(hosts_with_ranks), ranks, tuple(spares))
    if spec.backend == "mpi" and not launcher_of(spec.launcher).uses_mpi:
        raise UsageError("--backend mpi needs MPI to start the ranks; use --launcher mpirun")
    return placement
