"""`muster why`: why a running job stands still, or which rank slows it down, and with the evidence."""

from __future__ import annotations

import sys
import time
from json import dumps

from ..console.terminal import harmless_lines
from ..errors import UnfitError
from ..why.gather import gather, with_silent
from ..why.gather_pace import gather_stragglers
from ..why.slow import lines
from ..why.verdict import explain
from .command import Exit, command
from .running import exit_if_silent, no_rank, running
from .shared import HELP, JOB_HOSTS, RUNNING_JOB, RUNS, explained

_HELP = {
    "hosts": JOB_HOSTS,
    "python": HELP["python"],
    "job": RUNNING_JOB,
    "json": "print JSON for programs",
    "runs": RUNS,
}


@command(help=_HELP, words=("job",))
def why(  # a flag for each parameter
    job: str = "",
    hosts: str = "",
    json: bool = False,
    runs: str = "runs",
    python: str = "",
) -> None:
    """Say why a running job stands still or is slow: which ranks wait in what, and for whom.

    A job that was launched with --record or --stall-timeout tells most: which collective, of what size, in
    which line, and which rank comes late to it, with the likely cause. Of any other job, the stacks and
    processes of its ranks are compared. Ends with 1 if the job hangs, and with 3 if a host gives no answer.
    """
    with explained():
        with running(job, hosts, runs, python) as (state, channels, unasked):
            name = state.job
            ranks, problems = gather(name, channels)
            silent = {**unasked, **problems}
            ranks = with_silent(ranks, state.places, silent)
            if not ranks:
                raise Exit(no_rank(state), UnfitError.exit_status)
            verdict = explain(ranks)
            late = [] if verdict.hang else gather_stragglers(name, channels)
            silent |= {host: channel.lost.reason for host, channel in channels.items() if channel.lost}
        if json:
            said = {**verdict.as_json(), "late": [one.as_json() for one in late], "silent": silent}
            sys.stdout.write(dumps({"job": name, **said}, indent=2) + "\n")
        else:
            slow = "".join(f"{line}\n" for line in lines(late, time.time()))
            sys.stdout.write(harmless_lines(slow + str(verdict)))
        exit_if_silent(silent)
        if verdict.hang:
            raise Exit(code=1)
