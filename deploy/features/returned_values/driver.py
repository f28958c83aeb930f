"""The values that the function of a call returned: a file for each rank, fetched from its host."""

from __future__ import annotations

import contextlib
from collections import defaultdict

from ...core.connect.fanout import on_every
from ...core.errors import MusterError
from ...core.job.feature import Attempt, Feature
from ...core.job.fetch_output import ALL_SECONDS, fetched
from ...core.wire.paths import JobPaths

CALL = "muster_call"
"""The module that runs the function of a call (in_rank/muster_call.py)."""
PYTHON = f"{CALL}_python"
"""The file beside it with the version of Python that the code of the function needs."""
MOST_RETURNED = 1 << 24  # bytes of the value of one rank


def name_of(rank: int, attempt: int) -> str:
    """The file of a rank, in the folder of a run and in $MUSTER_OUT (in_rank/muster_call.py)."""
    return f"returned/rank-{rank}-{attempt}.json"


class ReturnedValues(Feature):
    """Fetches the files of an attempt into the folder of its run. A missing one is an error of its reader."""

    def __init__(self) -> None:
        self._sizes = defaultdict[str, dict[str, int]](dict)  # of all attempts, by host

    def fetch(self, attempt: Attempt) -> None:
        """Fetch them from all hosts at once."""
        if attempt.plan.spec.program.module != CALL:
            return
        names, cluster = defaultdict[str, list[str]](list), attempt.cluster
        for placed in attempt.plan.ranks:
            names[placed.host].append(name_of(placed.rank, attempt.plan.spec.attempt))
        outs = {host.host.name: JobPaths(host.folder).out for host in attempt.plan.hosts}

        def fetch(host: str) -> None:
            channel, sizes = cluster.channels[host], self._sizes[host]
            for name in names[host]:
                path = f"{outs[host]}/{name}"
                with contextlib.suppress(MusterError):
                    if content := fetched(channel, path, ALL_SECONDS, MOST_RETURNED):
                        attempt.folder.keep(name, content)
                        sizes[f"out/{name}"] = len(content)
            if not attempt.folder.problem:  # then muster clean may remove what has this size there
                attempt.folder.record_on(channel, f"../fetched.returned.{host}.json", sizes)

        on_every([host for host in names if host in cluster.channels], fetch, interrupted=cluster.close)
