"""The plan of a launch as a value: every file to write and every command to run.

`plan()` is pure: the same request, hosts and facts give the same plan. `print(plan)` is the dry run and the
golden file of the tests; the loop of the launch executes it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from ..errors import UnfitError
from ..hosts.host_facts import Facts
from ..hosts.hostfile import Host
from ..hosts.rendezvous import ClusterFacts
from ..text.fold import fold, fold_names
from ..text.terminal import harmless
from ..text.text import count, duration, ranges
from ..wire.paths import JobPaths, MusterPaths
from . import openmpi
from .launch_plan import Contribution, HostPlan, LaunchPlan, Layout, Placement, RemoteFile
from .launcher import launcher_of, refuse_long_arguments, refuse_shared_gpus, require, require_python
from .spec import LaunchSpec


@dataclass(frozen=True)
class RankPrograms:
    """The texts of the programs that a launch writes into a job's folder, from core/agent."""

    rank: str = field(repr=False)
    rsh: str = field(repr=False)
    in_rank: Mapping[str, str] = field(repr=False)
    """The files of in_rank/ that every rank loads."""


def plan(
    spec: LaunchSpec,
    placement: Placement,
    facts: ClusterFacts,
    added: Mapping[str, Contribution],
    tools: RankPrograms,
) -> LaunchPlan:
    """The plan of a launch. `UsageError` for an impossible request, `UnfitError` for unfit hosts.

    `added`: what features add to the plan of each host.
    """
    refuse_long_arguments(spec)
    hosts_with_ranks = placement.hosts
    launcher = launcher_of(spec.launcher)
    known = facts.hosts
    require(placement.connected, known, launcher=launcher)
    require_python(spec.program.python, {host.name: known[host.name] for host in placement.connected})
    refuse_shared_gpus(spec.backend, placement, known)
    interfaces = {host.name: facts.rendezvous.interfaces.get(host.name) for host in hosts_with_ranks}
    rendezvous = replace(facts.rendezvous, interfaces=interfaces)
    layout = Layout(spec, placement, {host.name: known[host.name] for host in hosts_with_ranks}, rendezvous)
    if launcher.uses_mpi and (unmet := openmpi.without_ipv4(rendezvous, layout.facts)):
        raise UnfitError((name, error.reason) for name, error in unmet.items())
    # All slots, not only those of the ranks, because MPI_Comm_spawn needs free slots.
    slots = openmpi.hostfile({host.name: host.slots for host in hosts_with_ranks})
    plans = tuple(
        _plan_host(host, layout, slots, tools, added.get(host.name, Contribution()))
        for host in hosts_with_ranks
    )
    title = _title(launcher.title(known[layout.head]), layout)
    busy = tuple(_busy(spec.job, {host.name: known[host.name] for host in placement.connected}))
    return LaunchPlan(spec, plans, title, busy, tuple(host.name for host in placement.spares), added)


def _plan_host(host: Host, layout: Layout, slots: str, tools: RankPrograms, added: Contribution) -> HostPlan:
    spec = layout.spec
    facts = layout.facts[host.name]
    paths = JobPaths.of(facts.home, spec.job)
    launcher = launcher_of(spec.launcher)
    programs = dict.fromkeys((*added.path, str(PurePosixPath(facts.mpirun or facts.executable).parent)))
    path = (paths.programs, *programs)
    files = (
        *_tools(paths, facts.executable, replace(tools, in_rank={**tools.in_rank, **added.in_rank})),
        RemoteFile(paths.hostfile, 0o600, slots),
        *added.files,
    )
    kept = MusterPaths.of_home(facts.home).kept(spec.project)
    return HostPlan(
        host=host,
        ranks=layout.placement.ranks[host.name],
        folder=paths.folder,
        cwd=str(PurePosixPath(paths.code, spec.tree.within)),
        path=path,
        env={**added.env, **_environment(host.name, layout, paths, added), **_own_path(spec, path)},
        files=tuple({file.path: file for file in files}.values()),
        command=launcher.command(host.name, layout),
        kept=tuple((f"{paths.code}/{folder}", f"{kept}/{folder}") for folder in spec.keep),
        own_files=added.own_files,
    )


def _environment(host: str, layout: Layout, paths: JobPaths, added: Contribution) -> dict[str, str]:
    """The environment of every rank of a host. The user's variables come last and override the others."""
    spec = layout.spec
    env = {
        "MASTER_ADDR": layout.rendezvous.address,
        "MASTER_PORT": str(layout.rendezvous.port),
        "MUSTER_BACKEND": spec.backend,
        "MUSTER_HOSTFILE": paths.hostfile,
        "MUSTER_JOB": spec.job,
        "MUSTER_OUT": paths.out,
        # Otherwise each rank would start a thread for every core of the host.
        "OMP_NUM_THREADS": str(max(1, layout.facts[host].cores // layout.ranks[host])),
        # Lines appear at once, not when a buffer is full.
        "PYTHONUNBUFFERED": "1",
    }
    if added.at_start:
        env["MUSTER_START"] = " ".join(added.at_start)
    if interface := layout.rendezvous.interfaces.get(host):
        # Of Gloo, of NCCL, and of torch.distributed.rpc.
        env |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), interface)
    if not layout.facts[host].has_libuv:
        env["USE_LIBUV"] = "0"  # env:// asks for it otherwise
    env |= launcher_of(spec.launcher).environment(host, layout)
    if spec.tree.commit:
        env["MUSTER_GIT_COMMIT"] = spec.tree.commit
    if spec.may_restart:
        env["MUSTER_RESTART"] = str(spec.attempt)
    if (spec.program.module or "").startswith("muster."):
        # Our own program imports nothing of the project, which may have a torch.py (from Python 3.11 on).
        env["PYTHONSAFEPATH"] = "1"
    if spec.columns:
        env["MUSTER_TERMINAL"] = str(spec.columns)
    return {**env, **dict(spec.env)}


def _own_path(spec: LaunchSpec, path: tuple[str, ...]) -> dict[str, str]:
    """The user's PATH, if any, after the folders of the programs that the job needs."""
    own = dict(spec.env)
    return {"PATH": ":".join(filter(None, (*path, own["PATH"])))} if "PATH" in own else {}


def _tools(paths: JobPaths, python: str, tools: RankPrograms) -> Iterator[RemoteFile]:
    """`muster-rank` and `muster-rsh` for a host: commands on PATH that run a script with the host's Python.

    Also the sitecustomize.py that runs inside each rank: `rank.py` puts its folder on PYTHONPATH.
    """
    for name, text in (("rank", tools.rank), ("rsh", tools.rsh)):
        script = f"{paths.programs}/{name}.py"
        start = f'#!/bin/sh\nexec {shlex.join((python, "-IS", script))} "$@"\n'
        yield RemoteFile(script, 0o600, text)
        yield RemoteFile(f"{paths.programs}/muster-{name}", 0o700, start)
    for name, text in tools.in_rank.items():
        yield RemoteFile(f"{paths.programs}/in_rank/{name}", 0o600, text)


def _busy(own_job: str, facts: Mapping[str, Facts]) -> Iterator[str]:
    """`node2 is busy: job JOB of alice, 2 h 10 min, GPUs 0-3`, one line for hosts with the same job."""
    others = [(host, job) for host in facts for job in facts[host].jobs if job.job != own_job]
    for hosts, (job, user, gpus) in fold((host, (job.job, job.user, job.gpus)) for host, job in others):
        ran = max(other.seconds for _, other in others if (other.job, other.user) == (job, user))
        on = f", {'GPU' if len(gpus) == 1 else 'GPUs'} {ranges(gpus)}" if gpus else ""
        are = "is" if len(hosts) == 1 else "are"
        yield f"{fold_names(hosts)} {are} busy: job {job} of {harmless(user)}, {duration(ran)}{on}"


# ---- as text ----------------------------------------------------------------------------------------------


def _title(launcher: str, layout: Layout) -> str:
    spec = layout.spec
    job = f"job {spec.job}, restart {spec.attempt}" if spec.attempt else f"job {spec.job}"
    ranks, hosts = count(sum(layout.ranks.values()), "rank"), count(len(layout.ranks), "host")
    return (
        f"{job}: {ranks} on {hosts} with {launcher}, "
        f"rendezvous at {layout.rendezvous.address} port {layout.rendezvous.port}"
    )
