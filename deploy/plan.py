"""What a launch will do, as a value: every file that will be written and every command that will run.

`plan()` is pure: the same request, hosts and facts give the same plan. `print(plan)` is the dry run and the
golden file of the tests; `execute` does what it says.
"""

from __future__ import annotations

import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path, PurePosixPath

from . import openmpi, torchrun
from .console.text import count
from .errors import UsageError
from .hosts.facts import ClusterFacts, Facts, Meeting
from .hosts.hostfile import Host
from .plan_launcher import Launcher, require
from .tree import Tree

PROGRAMS = Path(__file__).parent / "agent" / "job"
# A value under a name like these is shown as *** in a plan and is written to no file of the driver.
SECRET = ("TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "AUTH", "_KEY")


@dataclass(frozen=True, kw_only=True)
class Program:
    """What every rank runs: a module or a script of the tree, and its arguments."""

    module: str | None = None
    script: str | None = None
    args: tuple[str, ...] = ()

    def argv(self, *, abort_with_mpi: bool) -> tuple[str, ...]:
        """The arguments for Python.

        With MPI, an uncaught exception in one rank leaves the others waiting in MPI_Finalize for ever;
        `python -m mpi4py` makes it an MPI_Abort (mpi4py manual, "mpi4py.run").
        """
        runner = ("-m", "mpi4py") if abort_with_mpi else ()
        target = ("-m", self.module) if self.module else (self.script or "",)
        return (*runner, *target, *self.args)


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """What the user asked for."""

    job: str
    program: Program
    launcher: Launcher = "mpirun"
    np: int | None = None
    backend: str = "auto"
    env: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    """Names of `env` whose values are shown nowhere, whatever they are called."""
    columns: int | None = None
    """Width of the driver's terminal; None if its output is no terminal."""
    attempt: int = 0
    """How often this job was started before."""
    may_restart: bool = False


@dataclass(frozen=True)
class Place:
    """Where one rank runs."""

    rank: int
    local_rank: int
    host: str


@dataclass(frozen=True)
class RemoteFile:
    """A file that the launch writes to a host."""

    path: str
    mode: int
    text: str = field(repr=False)


@dataclass(frozen=True)
class HostPlan:
    """Everything that happens on one host. No `command`: its ranks are started from the head."""

    host: Host
    ranks: tuple[Place, ...]
    folder: str
    cwd: str
    path: tuple[str, ...]
    """Folders that come first on PATH of what is started: the job's own tools, then this host's mpirun."""
    env: Mapping[str, str]
    files: tuple[RemoteFile, ...]
    command: tuple[str, ...] | None


@dataclass(frozen=True)
class LaunchPlan:
    """The whole launch. The first host is the head."""

    spec: LaunchSpec
    tree: Tree
    library: Tree
    """Our own modules that every rank can import; the user's come first."""
    hosts: tuple[HostPlan, ...]
    title: str

    @property
    def ranks(self) -> tuple[Place, ...]:
        """Every rank in order."""
        return tuple(place for host in self.hosts for place in host.ranks)

    def __str__(self) -> str:
        described = (_describe_host(self.spec, host) for host in self.hosts)
        return "\n".join([self.title, _describe_tree(self), *described]) + "\n"


def place_ranks(hosts: Sequence[Host], np: int | None) -> tuple[Place, ...]:
    """Fill the slots of each host in the order of the file, as mpirun's `--map-by slot` does."""
    slots = [(host.name, local) for host in hosts for local in range(host.slots)]
    if np is not None and not 1 <= np <= len(slots):
        raise UsageError(f"--np {np}: the hosts have {len(slots)} slots; raise slots= or lower --np")
    return tuple(Place(rank, local, name) for rank, (name, local) in enumerate(slots[:np]))


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


def check_shape(spec: LaunchSpec, hosts: Sequence[Host], places: Sequence[Place]) -> None:
    """Refuse what no cluster could run; needs no facts, so it is asked before any host is."""
    if len(hosts) > 1 and (local := [host.name for host in hosts if host.is_local]):
        raise UsageError(f"{local[0]} means another machine on every host; write its name in the hosts file")
    counts = {host.name: sum(place.host == host.name for place in places) for host in hosts}
    if spec.launcher == "torchrun" and spec.backend == "mpi":
        raise UsageError("--backend mpi needs MPI to start the ranks; use --launcher mpirun")
    if spec.launcher == "torchrun" and len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise UsageError(
            f"torchrun starts the same number of ranks on every host, got {listed}; "
            "make slots= equal, give --np, or use --launcher mpirun"
        )


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
            hosts=len(places),
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


def _describe_tree(plan: LaunchPlan) -> str:
    kibibytes = -(-plan.tree.size // 1024)
    return f"code: {count(len(plan.tree.files), 'file')}, {kibibytes} KiB of {plan.tree.root}"


def _describe_host(spec: LaunchSpec, plan: HostPlan) -> str:
    ranks = (
        f"ranks {plan.ranks[0].rank}-{plan.ranks[-1].rank}"
        if len(plan.ranks) > 1
        else f"rank {plan.ranks[0].rank}"
    )
    lines = ["", f"{plan.host.name}: {ranks}", f"  folder {plan.folder}"]
    for file in plan.files:
        lines.append(f"  write {PurePosixPath(file.path).relative_to(plan.folder)} (mode {file.mode:04o})")
        if not file.path.endswith(".py"):
            lines += [f"    | {line}" for line in file.text.splitlines()]
    lines += [
        f"  env {name}={'***' if is_secret(name, spec.hidden) else shlex.quote(value)}"
        for name, value in sorted(plan.env.items())
    ]
    if plan.command:
        lines += [f"  run in {plan.cwd}", f"    {shlex.join(plan.command)}"]
    return "\n".join(lines)


def is_secret(name: str, hidden: Container[str]) -> bool:
    """Whether a value is not to be shown: it was given as a secret, or its name says that it is one."""
    return name in hidden or any(word in name.upper() for word in SECRET)
