"""What a launch will do, as a value: every file that will be written and every command that will run.

`plan()` is pure: the same request, hosts and facts give the same plan. `print(plan)` is the dry run and the
golden file of the tests; `execute` does what it says.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path, PurePosixPath

from ..console.text import count
from ..hosts.facts import ClusterFacts, Facts, Meeting
from ..hosts.hostfile import Host
from . import openmpi, torchrun
from .launch_plan import HostPlan, LaunchPlan, RemoteFile
from .launcher import require
from .placement import Place, check_shape, place_ranks
from .source_tree import Tree
from .spec import LaunchSpec

PROGRAMS = Path(__file__).parents[1] / "agent" / "job"


def plan(
    spec: LaunchSpec, hosts: Sequence[Host], facts: ClusterFacts, tree: Tree, library: Tree
) -> LaunchPlan:
    """The plan of a launch; `UsageError` for one that cannot be, `UnfitError` for hosts that cannot do it."""
    places = place_ranks(hosts, spec.np)
    used = tuple(host for host in hosts if any(place.host == host.name for place in places))
    check_shape(spec, used, places)
    require(used, facts.hosts, launcher=spec.launcher)
    by_host = {name: tuple(group) for name, group in groupby(places, key=lambda place: place.host)}
    plans = tuple(_plan_host(spec, host, by_host, facts, tree) for host in used)
    return LaunchPlan(spec, tree, library, plans, _title(spec, plans, facts))


def _plan_host(
    spec: LaunchSpec, host: Host, places: Mapping[str, tuple[Place, ...]], facts: ClusterFacts, tree: Tree
) -> HostPlan:
    own = facts.hosts[host.name]
    folder = PurePosixPath(own.home, ".muster", "jobs", spec.job)
    counts = {name: len(group) for name, group in places.items()}
    hostfile = RemoteFile(str(folder / "hostfile"), 0o600, openmpi.hostfile(counts))
    all_have_mpi4py = all(facts.hosts[name].mpi4py for name in places)
    program = spec.program.argv(abort_with_mpi=spec.launcher == "mpirun" and all_have_mpi4py)
    command: tuple[str, ...] | None = None
    if spec.launcher == "torchrun":
        command = torchrun.command(
            python=own.executable,
            job=spec.job,
            hosts=len(places),
            host_index=list(places).index(host.name),
            ranks_per_host=len(places[host.name]),
            meeting=facts.meeting,
            rank=("muster-rank", *program),
        )
    elif host.name == next(iter(places)):
        command = openmpi.command(
            version=own.mpi or "",
            ranks=sum(counts.values()),
            hostfile=hostfile.path,
            remote_shell="muster-rsh",
            as_root=own.uid == 0,
            rank=("muster-rank", *program),
        )
    return HostPlan(
        host=host,
        ranks=places[host.name],
        folder=str(folder),
        cwd=str(PurePosixPath(folder, "code", tree.within)),
        path=(str(folder / "bin"), str(PurePosixPath(own.mpirun or own.executable).parent)),
        env=_environment(spec, own, places, facts.meeting, host.name),
        files=(*_tools(folder, own.executable), hostfile),
        command=command,
    )


def _environment(
    spec: LaunchSpec, own: Facts, places: Mapping[str, tuple[Place, ...]], meeting: Meeting, name: str
) -> dict[str, str]:
    """What every rank of a host finds in its environment; the user's words come last."""
    ranks = len(places[name])
    env = {
        "MASTER_ADDR": meeting.address,
        "MASTER_PORT": str(meeting.port),
        "MUSTER_BACKEND": spec.backend,
        "MUSTER_HOSTFILE": str(PurePosixPath(own.home, ".muster", "jobs", spec.job, "hostfile")),
        "MUSTER_JOB": spec.job,
        "MUSTER_OUT": str(PurePosixPath(own.home, ".muster", "jobs", spec.job, "out")),
        # Each rank would otherwise start a thread for every core of the host.
        "OMP_NUM_THREADS": str(max(1, own.cores // ranks)),
        # Lines appear when they are printed, not when a buffer is full.
        "PYTHONUNBUFFERED": "1",
    }
    if interface := meeting.interfaces.get(name):
        env |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
        if len(places) > 1 and spec.launcher == "mpirun" and all(meeting.interfaces.values()):
            env |= openmpi.interfaces(own.mpi or "", interface)
    if spec.launcher == "mpirun" and ranks >= own.cores:
        # MPI waits in a busy loop; on a full host that takes the core another rank needs.
        env["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if spec.may_restart:
        env["MUSTER_RESTART"] = str(spec.attempt)
    if (spec.program.module or "").startswith("muster."):
        # Our own program needs nothing of the project; a torch.py may be there (heeded from Python 3.11 on).
        env["PYTHONSAFEPATH"] = "1"
    if spec.columns:
        env["MUSTER_TERMINAL"] = str(spec.columns)
    return {**env, **dict(spec.env)}


def _tools(folder: PurePosixPath, python: str) -> list[RemoteFile]:
    """`muster-rank` and `muster-rsh` for one host: words on PATH that run a script by this host's Python."""
    files = []
    for name in ("rank", "rsh"):
        script = str(folder / "bin" / f"{name}.py")
        start = f'#!/bin/sh\nexec {shlex.join((python, "-IS", script))} "$@"\n'
        files.append(RemoteFile(script, 0o600, (PROGRAMS / f"{name}.py").read_text()))
        files.append(RemoteFile(str(folder / "bin" / f"muster-{name}"), 0o700, start))
    return files


# ---- as text ----------------------------------------------------------------------------------------------


def _title(spec: LaunchSpec, hosts: Sequence[HostPlan], facts: ClusterFacts) -> str:
    own = facts.hosts[hosts[0].host.name]
    launcher = (
        f"mpirun (Open MPI {own.mpi})" if spec.launcher == "mpirun" else f"torchrun (torch {own.torch})"
    )
    ranks = sum(len(host.ranks) for host in hosts)
    job = f"job {spec.job}, restart {spec.attempt}" if spec.attempt else f"job {spec.job}"
    return (
        f"{job}: {count(ranks, 'rank')} on {count(len(hosts), 'host')} with {launcher}, "
        f"meeting at {facts.meeting.address} port {facts.meeting.port}"
    )
