"""Runs a command on many hosts at once, and removes the folders of old jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from ...core.connect.channel import Channel
from ...core.connect.cluster import Cluster
from ...core.connect.fanout import ask_every
from ...core.connect.pipe import LostError, why_lost
from ...core.connect.reports import Lost, Report
from ...core.connect.requests.request import Nothing
from ...core.errors import MusterError
from ...core.hosts.stuck import not_ended
from ...core.text.text import describe_code, status_of
from ...core.waits import waiting
from .messages import CLEAN, RUN, Cleaned, CommandRan

HEAR_SECONDS = 2.0
TIMED_OUT, LOST = 124, 3  # the statuses of timeout(1), and of a host that is not fit
TRANSFER_SECONDS = 600.0


@dataclass(frozen=True)
class Ended:
    """The end of a command on one host. Hosts with equal ends are shown together."""

    status: int
    end: str
    """Its end as text, empty for exit status 0."""
    output: str


def run(cluster: Cluster, argv: Sequence[str], seconds: float | None) -> dict[str, Ended]:
    """Run a command on every connected host. Leaving the cluster's context ends its processes."""
    left = dict(cluster.channels)
    posted = {host: channel.post(RUN, argv=list(argv), limit=seconds) for host, channel in left.items()}
    ended: dict[str, Ended] = {}
    with waiting(hosts=left) as noted:
        while left:
            event = cluster.hear(HEAR_SECONDS)
            newly = {event.host: _ended(event.report)} if event and left.pop(event.host, None) else {}
            newly |= _refused(left, posted)
            for host in newly:
                noted.over_for(host)
            ended |= newly
    return {host: ended[host] for host in cluster.channels}


def clean(cluster: Cluster, age: float, *, results: bool) -> dict[str, Cleaned]:
    """Remove folders of jobs older than `age` seconds; returns removed and kept jobs, and freed bytes.

    `results`: also the files that their programs wrote.
    """
    wanted = {"older": age, "results": results}
    cleaned = ask_every(cluster.channels, CLEAN, TRANSFER_SECONDS, lambda host: wanted)
    return cleaned.require_all()


def _refused(left: dict[str, Channel], posted: Mapping[str, Future[Nothing]]) -> dict[str, Ended]:
    """Stop waiting for hosts whose agent could not start the command, because no report follows."""
    refused = {}
    for host in [*left]:
        error = posted[host].exception() if posted[host].done() else None
        # A lost connection has a report.
        if isinstance(error, MusterError) and not isinstance(error, LostError):
            del left[host]
            refused[host] = Ended(LOST, error.reason, "")
    return refused


def _ended(report: Report) -> Ended:
    if isinstance(report, Lost):
        return Ended(LOST, why_lost(report.reason), "")
    if not isinstance(report, CommandRan):
        return Ended(LOST, "protocol error: an unexpected report", "")
    output = report.output.decode(errors="replace")
    if report.cut:
        output += f"\n({report.cut} bytes more)\n"
    if report.timed_out:
        stuck = f"; {not_ended(report.left)}" if report.left else ""
        return Ended(TIMED_OUT, f"timed out{stuck}", output)
    return Ended(status_of(report.code), describe_code(report.code) if report.code else "", output)
