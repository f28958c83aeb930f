"""`muster clean`."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass

from ...cli.inventory import hosts_or_this_machine, reached_hosts
from ...cli.shared import JSON, HostOptions, print_note, write_json
from ...core.connect.cluster import Cluster
from ...core.connect.fanout import HostOutcomes, ask_every
from ...core.plan.flags import flag
from ...core.text.terminal import harmless
from ...core.text.text import count, size
from .messages import CLEAN, Cleaned

CLEAN_SECONDS, DAY, DEFAULT_DAYS = 600.0, 86400.0, 7
MOST_JOBS = 20
"""Jobs of a host whose results are named."""


def clean_hosts(cluster: Cluster, age: float, *, results: bool) -> HostOutcomes[Cleaned]:
    """Remove folders of jobs older than `age` seconds; returns removed and kept jobs, and freed bytes.

    `results`: also the files that their programs wrote.
    """
    return ask_every(cluster.channels, CLEAN, CLEAN_SECONDS, lambda host: {"older": age, "results": results})


@dataclass(frozen=True)
class Clean(HostOptions):
    """Remove the folders of old jobs on the hosts. Those of running jobs stay.

    What their programs wrote, beside the code and into $MUSTER_OUT, stays too and is named, as is what
    they left in shared memory.
    """

    older_than: int = flag(
        DEFAULT_DAYS, f"days since the last write to the folder (default: {DEFAULT_DAYS})", "DAYS", least=0
    )
    results: bool = flag(False, "also remove the files that the programs wrote")
    json: bool = flag(False, JSON)

    def run(self) -> None:
        """Remove them, and print the freed space of each host."""
        with reached_hosts(self, hosts_or_this_machine) as (cluster, errors):
            outcomes = clean_hosts(cluster, self.older_than * DAY, results=self.results)
            errors.update(outcomes.errors)
            cleanups = outcomes.results
            if self.json:
                write_json({host: asdict(cleanup) for host, cleanup in cleanups.items()})
            else:
                for host, cleanup in cleanups.items():
                    jobs = f"{count(len(cleanup.removed), 'job')} removed, {len(cleanup.kept)} kept"
                    sys.stdout.write(f"{host}: {jobs}, {size(cleanup.freed)} freed\n")
                    for left in cleanup.results[:MOST_JOBS]:
                        sys.stdout.write(f"    {harmless(left.job)}: {left.files.described}\n")
                    if cleanup.memory and (left_there := cleanup.memory.described):
                        sys.stdout.write(f"    left in memory: {left_there}\n")
                    if (more := len(cleanup.results) - MOST_JOBS) > 0:
                        sys.stdout.write(f"    results of {count(more, 'more job')}\n")
                if any(cleanup.results for cleanup in cleanups.values()):
                    print_note(
                        "of these jobs only code and logs were removed: muster get JOB fetches their files, "
                        "and muster clean --results removes them"
                    )
