"""`fab stacks`: where every rank of a running job is."""

from __future__ import annotations

import sys
from pathlib import Path

from invoke import Context, Exit, task

from deploy import hostfile
from deploy.cluster import Cluster
from deploy.screen import harmless
from deploy.stacks import gather
from deploy.tasks.shared import HELP, explained, opener

_HELP = {**HELP, "job": "its name, as fab launch says it in its first line"}


@task(help=_HELP, positional=[], auto_shortflags=False)
def stacks(  # noqa: PLR0917  # fab makes a flag of each parameter
    context: Context,
    job: str = "",
    hosts: str = "hosts.txt",
    include: str = "",
    exclude: str = "",
    python: str = "",
) -> None:
    """Where every rank of a job is in its program, now; ranks that are at the same place together."""
    with explained(context):
        chosen = hostfile.select(hostfile.load(Path(hosts)), include, exclude)
        with Cluster(chosen, opener(Path(hosts), python)) as cluster:
            found = gather(job, cluster.channels)
        if not found.frames and not found.problems:
            raise Exit(f"no rank of {job} is running on these hosts", 1)
        sys.stdout.write("".join(f"{harmless(line)}\n" for line in str(found).splitlines()))
        if found.problems:
            raise Exit(code=3)
