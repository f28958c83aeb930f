"""`muster stacks`: where in its program every rank of a running job is."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from invoke import Context, Exit

from ..connect.cluster import Cluster
from ..connect.opener import opener
from ..console.terminal import harmless_lines
from ..errors import UsageError
from ..hosts import hostfile
from ..jobs import control as jobs
from ..launch.stacks import gather
from .command import command
from .shared import HELP, explained

_HELP = {
    **HELP,
    "job": "the id of the job, or the end of the id",
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
        if not job:
            raise UsageError("which job? its id is what a launch says first; muster status lists all")
        chosen = hostfile.select(hostfile.load(Path(hosts)), include, exclude)
        with contextlib.closing(Cluster(chosen, opener(Path(hosts), python), facts=False)) as cluster:
            errors = cluster.connect()
            channels = cluster.channels
            known = jobs.known_to([jobs.Here(Path(runs)), *channels.values()])
            state = jobs.only(known, job, "here or on these hosts").state
            name = state.job
            gathered = gather(name, channels)
        sys.stdout.write(harmless_lines(str(gathered)))
        if lines := [f"{host}: {error.reason}" for host, error in errors.items() if host in state.hosts]:
            raise Exit(harmless_lines("\n".join(lines)), 3)
        if not gathered.frames and not gathered.problems:
            raise Exit(f"no rank of {name} is running on these hosts", 1)
