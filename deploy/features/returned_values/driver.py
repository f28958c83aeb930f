"""The values that the function of a call returned: a file for each rank, fetched from its host."""

from __future__ import annotations

import contextlib
from collections import defaultdict

from ...core.connect.channel import Channel
from ...core.connect.fanout import on_every
from ...core.errors import MusterError
from ...core.job.feature import Attempt, Feature
from ...core.job.fetch_output import ALL_SECONDS, fetched
from ...core.job.run_folder import RunFolder

CALL = "muster_call"
"""The module that runs the function of a call (in_rank/muster_call.py)."""
PYTHON = f"{CALL}_python"
"""The file beside it with the version of Python that the code of the function needs."""
MOST_RETURNED = 1 << 24  # bytes of the value of one rank


def name_of(rank: int) -> str:
    """The file of a rank, in the folder of a run and in $MUSTER_OUT (in_rank/muster_call.py)."""
    return f"returned/rank-{rank}.json"


class ReturnedValues(Feature):
    """Fetches the files of an attempt into the folder of its run. A missing one is an error of its reader."""

    def fetch(self, attempt: Attempt) -> None:
        """Fetch them from all hosts at once."""
        if attempt.plan.spec.program.module != CALL:
            return
        ranks, cluster = defaultdict[str, list[int]](list), attempt.cluster
        for placed in attempt.plan.ranks:
            ranks[placed.host].append(placed.rank)

        def fetch(host: str) -> None:
            for rank in ranks[host]:
                _fetch(cluster.channels[host], rank, attempt.folder)

        on_every([host for host in ranks if host in cluster.channels], fetch, interrupted=cluster.close)


def _fetch(channel: Channel, rank: int, folder: RunFolder) -> None:
    with contextlib.suppress(MusterError):
        content = fetched(channel, name_of(rank), ALL_SECONDS, MOST_RETURNED)
        if content:
            folder.keep(name_of(rank), content)
