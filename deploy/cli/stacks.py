"""`muster stacks`: where in its program every rank of a running job is."""

from __future__ import annotations

import sys
from pathlib import Path

from invoke import Context, Exit

from ..console.terminal import harmless_lines
from ..hosts import hostfile
from ..launch.stacks import gather
from .command import command
from .running import exit_if_silent, running
from .shared import HELP, RUNNING_JOB, RUNS, explained

_HELP = {
    **HELP,
    "job": RUNNING_JOB,
    "runs": RUNS,
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
        exit_if_silent(silent)
        if not gathered.frames and not gathered.problems:
            raise Exit(f"no rank of {state.job} is running on these hosts", 1)
