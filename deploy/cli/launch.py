"""`muster launch`: run a program on every host."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from invoke import Context, Exit

from ..connect.cluster import Cluster
from ..connect.opener import opener
from ..console.screen import Screen
from ..console.terminal import harmless, harmless_lines
from ..hosts import hostfile
from ..jobs.detach import detach as handed_over
from ..jobs.job import Job
from ..jobs.run_folder import RunFolder
from ..jobs.runner import Attempts, make_plan
from ..jobs.verdict import verdict
from ..plan.launcher import LAUNCHERS
from ..plan.placement import used_hosts
from ..plan.source_tree import of_package, scan
from ..plan.spec import LaunchSpec
from . import options as request
from .command import command
from .habits import HINTS, SPELLINGS
from .shared import HELP, explained
from .shipped import TRAIN

_HELP = {
    **HELP,
    "launcher": "mpirun (default) or torchrun",
    "script": "a Python script of the working tree to run in every rank",
    "module": "a Python module to run in every rank (default: muster.train)",
    "args": 'its arguments, quoted as in a shell: --args="--epochs 3"',
    "backend": "auto (default), gloo, nccl, mpi or hccl: handed to the program as MUSTER_BACKEND",
    "np": "number of ranks (default: all slots)",
    "per-host": "number of ranks on each host (default: its slots)",
    "env": "K=V for every rank, or K to take its value from here; may be repeated",
    "detach": "let the job go on when this command ends: its driver runs on the first host",
    "dry-run": "print every file and every command, and touch nothing",
    "max-restarts": "how often to start again after a failure, on the hosts that are still fit (default: 0)",
    "min-hosts": "start again only on so many hosts or more (default: all)",
    "start-timeout": "seconds until every rank must have started (default: 60)",
    "stall-timeout": "end a job in which nothing moves for so many seconds (default: 0, never)",
    "max-log": "what the logs of the run may take here: 500M, 20G (default: 8G; 0: any); hosts keep all",
    "network": "for the ranks' traffic: a CIDR, or an interface of the first host (default: what all reach)",
    "rank": "show only these ranks here: 0,4-7; the logs have all",
    "runs": "where the folder of this run is made (default: runs)",
}


@command(
    help=_HELP,
    iterable=["env"],
    words=("script",),
    rest="args",
    rest_after_words=True,
    ends_options=("-m",),
    spellings=SPELLINGS,
    hints=HINTS,
)
def launch(  # noqa: PLR0917  # fab makes a flag of each parameter
    context: Context,
    hosts: str = "hosts.txt",
    launcher: str = "mpirun",
    script: str = "",
    module: str = "",
    args: str = "",
    backend: str = "auto",
    np: int = 0,
    per_host: int = 0,
    env: Iterable[str] | None = None,
    include: str = "",
    exclude: str = "",
    detach: bool = False,
    dry_run: bool = False,
    max_restarts: int = 0,
    min_hosts: int = 0,
    start_timeout: int = 60,
    stall_timeout: int = 0,
    max_log: str = "8G",
    rank: str = "",
    network: str = "",
    runs: str = "runs",
    python: str = "",
) -> None:
    """Run a program on every host: its ranks, their logs here, and a verdict.

    muster launch train.py --epochs 3        what follows the script is the program's
    muster launch --np 4 -m package.module   so is what follows -m MODULE
    muster launch -- --epochs 3              Muster's own training program, with arguments
    """
    with explained(context, "interrupted; the job is ended on every host"):
        here, screen = Path.cwd(), Screen(sys.stdout, request.ranks(rank))
        tree = scan(here)
        listed = hostfile.select(hostfile.load(Path(hosts)), include, exclude)
        listed = request.per_host(listed, per_host)
        spec = LaunchSpec(
            job=request.new_job(),
            program=request.program(tree, here, script=script, module=module, args=args),
            launcher=request.one_of("--launcher", launcher, LAUNCHERS),
            np=np or None,
            backend=request.one_of("--backend", backend, request.BACKENDS),
            env=request.environment(env or (), os.environ),
            hidden=request.taken_from_here(env or ()),
            columns=None if detach else screen.columns,
            may_restart=max_restarts > 0,
        )
        job = Job(
            spec=spec,
            hosts=listed,
            tree=tree,
            library=of_package(TRAIN),
            start_timeout=float(start_timeout),
            stall_timeout=float(stall_timeout),
            network=request.network(network),
            max_restarts=max_restarts,
            min_hosts=request.min_hosts(min_hosts, used_hosts(listed, spec)),
            max_log=request.size("--max-log", max_log),
            python=python,
        )
        if dry_run or context.config.run.dry:
            _show(job, Path(hosts))
        elif detach:
            _hand_over(job, Path(hosts), screen)
        else:
            carry_out(job, Path(hosts), RunFolder(Path(runs), spec.job, max_log=job.max_log), screen)


def _show(job: Job, hosts_file: Path) -> None:
    """The plan, and nothing is touched."""
    used = used_hosts(job.hosts, job.spec)
    with Cluster(used, opener(hosts_file, job.python)) as cluster:
        sys.stdout.write(harmless_lines(str(make_plan(job, used, 0, cluster))))


def _hand_over(job: Job, hosts_file: Path, screen: Screen) -> None:
    """The job to its head, where it goes on."""
    name = job.spec.job
    with Cluster(job.hosts[:1], opener(hosts_file, job.python)) as cluster:
        screen.say(harmless(handed_over(job, cluster)))
    screen.say(f"detached; its driver is on {job.hosts[0].name}: muster attach {name}, muster stop {name}")


def carry_out(job: Job, hosts_file: Path, folder: RunFolder, screen: Screen) -> None:
    """The job with its records and its screen, to its verdict."""
    try:
        result = Attempts(job, opener(hosts_file, job.python), folder, (folder, screen)).run()
    finally:
        screen.close()
    screen.say(verdict(result, folder))
    if result.exit_status:
        raise Exit(code=result.exit_status)
