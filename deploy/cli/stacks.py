"""`muster stacks`: where in its program every rank of a running job is."""

from __future__ import annotations

import sys

from ..console.terminal import harmless_lines
from ..errors import UnfitError
from ..launch.stacks import gather
from .command import Exit, command
from .running import exit_if_silent, no_rank, running
from .shared import HELP, JOB_HOSTS, RUNNING_JOB, RUNS, explained

_HELP = {
    **HELP,
    "hosts": JOB_HOSTS,
    "job": RUNNING_JOB,
    "runs": RUNS,
}


@command(help=_HELP, words=("job",))
def stacks(  # noqa: PLR0917  # a flag for each parameter
    job: str = "",
    hosts: str = "",
    include: str = "",
    exclude: str = "",
    runs: str = "runs",
    python: str = "",
) -> None:
    """Show where in its program every rank of a running job is, with equal ranks together."""
    with explained():
        with running(job, hosts, runs, python, (include, exclude)) as (state, channels, silent):
            gathered = gather(state.job, channels)
        sys.stdout.write(harmless_lines(str(gathered)))
        exit_if_silent(silent)
        if gathered.problems:
            raise Exit(code=UnfitError.exit_status)
        if not gathered.frames and not gathered.problems:
            raise Exit(no_rank(state), 1)
