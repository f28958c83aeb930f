"""The commands: `fab check` and `fab launch`. The only module that prints or exits.

fab has a core flag --hosts (comma-separated names); a task's own --hosts wins only after the task's name, and
only if it has a default and is not positional. So every task has `hosts`, and says so when it is misused.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from json import dumps
from pathlib import Path
from types import FrameType

from fabric import Connection
from invoke import Collection, Context, Exit, task

from deploy import hostfile, request
from deploy.channel import LostError
from deploy.checks import check as judge
from deploy.checks import report as check_report
from deploy.checks import unfit
from deploy.cluster import Cluster
from deploy.errors import MusterError, UnfitError
from deploy.examine import examine
from deploy.execute import execute
from deploy.hostfile import Host
from deploy.plan import LAUNCHERS, LaunchPlan, LaunchSpec, Program, plan
from deploy.records import RunFolder
from deploy.report import verdict
from deploy.result import LaunchResult
from deploy.screen import Screen
from deploy.transports import open_pipe
from deploy.tree import scan

_HELP = {
    "hosts": "the hosts file (default: hosts.txt)",
    "launcher": "mpirun (default) or torchrun",
    "script": "a Python script of the working tree to run in every rank",
    "module": "a Python module to run in every rank (default: train)",
    "args": 'its arguments, quoted as in a shell: --args="--epochs 3"',
    "backend": "auto (default), gloo, nccl, mpi or hccl: handed to the program as MUSTER_BACKEND",
    "np": "number of ranks (default: all slots)",
    "env": "K=V for every rank, or K to take its value from here; may be repeated",
    "include": "only these hosts: node[1-3],gpu-a",
    "exclude": "not these hosts",
    "dry-run": "print every file and every command, and touch nothing",
    "start-timeout": "seconds until every rank must have started (default: 60)",
    "runs": "where the folder of this run is made (default: runs)",
    "python": "the Python of the hosts (default: python3 there, this one on localhost)",
}
_CHECK_HELP = {
    **{option: _HELP[option] for option in ("hosts", "include", "exclude", "python")},
    "launcher": "which launcher the hosts must be fit for: mpirun (default) or torchrun",
    "json": "for programs: everything that was measured, and every finding with its id",
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
    with _explained(context):
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
        with _cluster(chosen, Path(hosts), python) as cluster:
            the_plan = plan(spec, chosen, cluster.survey(), tree)
            if dry_run or context.config.run.dry:
                sys.stdout.write(str(the_plan))
                return
            folder = RunFolder(Path(runs), spec.job)
            result = _carry_out(the_plan, cluster, folder, screen, start_timeout)
        screen.say(verdict(result, folder))
        if result.exit_status:
            raise Exit(code=result.exit_status)


@task(help=_CHECK_HELP, positional=[], auto_shortflags=False)
def check(  # noqa: PLR0917  # fab makes a flag of each parameter
    context: Context,
    hosts: str = "hosts.txt",
    launcher: str = "mpirun",
    include: str = "",
    exclude: str = "",
    python: str = "",
    json: bool = False,
) -> None:
    """Whether every host is fit for a launch, and if not, which one and what fixes it."""
    with _explained(context):
        named = request.one_of("--launcher", launcher, LAUNCHERS)
        chosen = hostfile.select(hostfile.load(Path(hosts)), include, exclude)
        request.used_hosts(chosen, LaunchSpec(job="", program=Program(), launcher=named))
        with contextlib.closing(_cluster(chosen, Path(hosts), python)) as cluster:
            examination = examine(cluster)
        findings = judge(chosen, examination, named)
        if json:
            said = dumps(check_report.as_json(chosen, examination, findings, named), indent=2) + "\n"
        else:
            said = check_report.as_text(chosen, examination, findings)
        sys.stdout.write(said)
        if unfit(findings):
            raise Exit(code=UnfitError.exit_status)


def _cluster(hosts: tuple[Host, ...], hosts_file: Path, python: str) -> Cluster:
    """The hosts, by the SSH configuration made for them beside the hosts file, else by the user's own."""
    made = hosts_file.parent / ".muster" / "ssh_config"
    ssh_config = made if made.is_file() else None
    return Cluster(hosts, lambda host: open_pipe(host, python=python or None, ssh_config=ssh_config))


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


@contextlib.contextmanager
def _explained(context: Context) -> Iterator[None]:
    """Errors leave as plain lines with their exit status; SIGTERM and SIGHUP stop the job as Ctrl-C does."""
    if isinstance(context, Connection):
        raise Exit("--hosts comes after the task: fab launch --hosts hosts.txt", 2)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
            signal.signal(number, interrupt)
    try:
        yield
    except MusterError as error:
        raise Exit(str(error), error.exit_status) from None
    except KeyboardInterrupt as stop:
        raise Exit("interrupted; the job is ended on every host", 128 + (stop.args or (2,))[0]) from None


namespace = Collection(check, launch)
