"""`muster stacks`: where in its program every rank of a running job is."""

from __future__ import annotations

import sys
from pathlib import Path

from invoke import Context, Exit

from ..console.terminal import harmless, harmless_lines
from ..hosts import hostfile
from ..launch.stacks import gather
from .command import command
from .running import running
from .shared import HELP, RUNNING_JOB, explained

_HELP = {
    **HELP,
    "job": RUNNING_JOB,
    "runs": "the folder that holds the runs of this machine (default: runs)",
}


@command(help=_HELP, words=("job",))
def stacks(  # noqa: PLR0917  # fab makes a flag of each parameter
    context: Context,
    job: str = "",
    hosts: str = "hosts.txt",
    include: str = "",
    exclude: str = "",
    runs: str = "runs",
    python: str = "",
) -> None:
    """Show where in its program every rank of a running job is, with equal ranks together."""
    with explained(context):
        chosen = hostfile.select(hostfile.load(Path(hosts)), include, exclude)
        with running(job, chosen, hosts, runs, python) as (state, channels, silent):
            gathered = gather(state.job, channels)
        sys.stdout.write(harmless_lines(str(gathered)))
        if silent:
            raise Exit("\n".join(harmless(f"{host}: {reason}") for host, reason in silent.items()), 3)
        if not gathered.frames and not gathered.problems:
            raise Exit(f"no rank of {state.job} is running on these hosts", 1)
