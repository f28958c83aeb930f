"""`muster why`: why a running job stands still, in two lines and with the evidence."""

from __future__ import annotations

import contextlib
import sys
from json import dumps
from pathlib import Path

from invoke import Context, Exit

from ..connect.cluster import Cluster
from ..connect.opener import opener
from ..console.terminal import harmless, harmless_lines
from ..errors import UsageError
from ..hosts import hostfile
from ..jobs import control as jobs
from ..why.gather import gather
from ..why.verdict import explain
from .command import command
from .shared import HELP, explained

_HELP = {
    "hosts": HELP["hosts"],
    "python": HELP["python"],
    "job": "the id of the job, or the end of the id",
    "json": "print JSON for programs",
    "runs": "the folder that holds the runs of this machine (default: runs)",
}


@command(help=_HELP, words=("job",))
def why(  # noqa: PLR0917  # fab makes a flag of each parameter
    context: Context,
    job: str = "",
    hosts: str = "hosts.txt",
    json: bool = False,
    runs: str = "runs",
    python: str = "",
) -> None:
    """Say why a running job stands still: which ranks wait in what, and for whom.

    A job that was launched with --record tells most: which collective, of what size, in which line. Of any
    other job, the stacks and processes of its ranks are compared. Ends with 1 if the job hangs.
    """
    with explained(context):
        if not job:
            raise UsageError("which job? its id is what a launch says first; muster status lists all")
        chosen = hostfile.load(Path(hosts))
        with contextlib.closing(Cluster(chosen, opener(Path(hosts), python), facts=False)) as cluster:
            errors = cluster.connect()
            known = jobs.known_to([jobs.Here(Path(runs)), *cluster.channels.values()])
            name = jobs.only(known, job, "here or on these hosts").state.job
            ranks, problems = gather(name, cluster.channels)
        verdict = explain(ranks)
        silent = {**{host: error.reason for host, error in errors.items()}, **problems}
        if json:
            sys.stdout.write(dumps({"job": name, **verdict.as_json(), "silent": silent}, indent=2) + "\n")
        else:
            sys.stdout.write(harmless_lines(str(verdict)))
        if silent:
            raise Exit("\n".join(harmless(f"{host}: {reason}") for host, reason in silent.items()), 3)
        if verdict.hang:
            raise Exit(code=1)
