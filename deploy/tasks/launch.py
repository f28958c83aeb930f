"""`fab launch`: run a program on every host."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from invoke import Context, Exit, task

from deploy import hostfile, request
from deploy.channel import LostError
from deploy.cluster import Cluster
from deploy.execute import execute
from deploy.plan import LAUNCHERS, LaunchPlan, LaunchSpec, plan
from deploy.records import RunFolder
from deploy.report import verdict
from deploy.result import LaunchResult
from deploy.screen import Screen
from deploy.tasks.shared import HELP, cluster_of, explained
from deploy.tree import scan

_HELP = {
    **HELP,
    "launcher": "mpirun (default) or torchrun",
    "script": "a Python script of the working tree to run in every rank",
    "module": "a Python module to run in every rank (default: train)",
    "args": 'its arguments, quoted as in a shell: --args="--epochs 3"',
    "backend": "auto (default), gloo, nccl, mpi or hccl: handed to the program as MUSTER_BACKEND",
    "np": "number of ranks (default: all slots)",
    "env": "K=V for every rank, or K to take its value from here; may be repeated",
    "dry-run": "print every file and every command, and touch nothing",
    "start-timeout": "seconds until every rank must have started (default: 60)",
    "runs": "where the folder of this run is made (default: runs)",
}


@task(help=_HELP, iterable=["env"], positional=[], auto_shortflags=False)
def launch(  # noqa: PLR0917  # fab makes a flag of each parameter
    context: Context,
    hosts: str = "hosts.txt",
    launcher: str = "mpirun",
    script: str = "",
    module: str = "",
    args: str = "",
    backend: str = "auto",
    np: int = 0,
    env: Iterable[str] | None = None,
    include: str = "",
    exclude: str = "",
    dry_run: bool = False,
    start_timeout: int = 60,
    runs: str = "runs",
    python: str = "",
) -> None:
    """Run a program on every host: its ranks, their logs here, and a verdict."""
    with explained(context):
        here, screen = Path.cwd(), Screen(sys.stdout)
        tree = scan(here)
        spec = LaunchSpec(
            job=request.new_job(),
            program=request.program(tree, here, script=script, module=module, args=args),
            launcher=request.one_of("--launcher", launcher, LAUNCHERS),
            np=np or None,
            backend=request.one_of("--backend", backend, request.BACKENDS),
            env=request.environment(env or (), os.environ),
            columns=screen.columns,
        )
        listed = hostfile.select(hostfile.load(Path(hosts)), include, exclude)
        chosen = request.used_hosts(listed, spec)
        with cluster_of(chosen, Path(hosts), python) as cluster:
            the_plan = plan(spec, chosen, cluster.survey(), tree)
            if dry_run or context.config.run.dry:
                sys.stdout.write(str(the_plan))
                return
            folder = RunFolder(Path(runs), spec.job)
            result = _carry_out(the_plan, cluster, folder, screen, start_timeout)
        screen.say(verdict(result, folder))
        if result.exit_status:
            raise Exit(code=result.exit_status)


def _carry_out(
    the_plan: LaunchPlan, cluster: Cluster, folder: RunFolder, screen: Screen, start_timeout: int
) -> LaunchResult:
    """Execute the plan with its records and its screen."""
    folder.create(the_plan)
    screen.say(the_plan.title)
    try:
        result = execute(the_plan, cluster, (folder, screen), start_timeout=start_timeout)
    finally:
        screen.close()
    metrics = None
    with contextlib.suppress(LostError):
        head = cluster.channels[the_plan.ranks[0].host]
        metrics = head.ask("fetch", path="out/metrics.jsonl", seconds=5)["text"]
    folder.finish(result, metrics)
    return result
