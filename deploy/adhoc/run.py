"""One command on many hosts at once, and the removal of what old jobs left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty

from ..connect.channel import SILENCE_SECONDS, Channel
from ..connect.cluster import Cluster
from ..connect.fanout import ask_every
from ..connect.pipe import LostError
from ..connect.reports import Lost, Ran, Report
from ..connect.requests.files import CLEAN, RUN, Cleaned
from ..connect.requests.hosts import TIME
from ..connect.requests.request import Nothing
from ..console.text import describe_code, status_of
from ..errors import MusterError

PING_SECONDS = 2.0
TIMED_OUT, LOST = 124, 3  # the statuses of timeout(1), and of a host that is not fit
TRANSFER_SECONDS = 600.0


@dataclass(frozen=True)
class Ended:
    """How a command ended on one host. Hosts with equal ends are shown together."""

    status: int
    end: str
    """What to say of its end, empty for exit status 0."""
    output: str


def run(
    cluster: Cluster,
    argv: Sequence[str],
    seconds: float | None,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Ended]:
    """Run a command on every connected host; leaving the cluster's context ends what is left of it.

    `tell`: gets the hosts on which it has ended, and all hosts.
    """
    waiting = dict(cluster.channels)
    posted = {host: channel.post(RUN, argv=list(argv), limit=seconds) for host, channel in waiting.items()}
    ended: dict[str, Ended] = {}
    asked = 0.0
    while waiting:
        if time.monotonic() - asked > PING_SECONDS:
            asked = time.monotonic()
            ended |= _silent(waiting)
        tell(len(ended), len(cluster.channels))
        try:
            event = cluster.events.get(timeout=PING_SECONDS)
        except Empty:
            pass
        else:
            if waiting.pop(event.host, None):
                ended[event.host] = _ended(event.report)
        ended |= _refused(waiting, posted)
    return {host: ended[host] for host in cluster.channels}


def clean(cluster: Cluster, age: float) -> dict[str, Cleaned]:
    """Remove what jobs older than `age` seconds have left; returns what was removed, kept and freed."""
    asked = ask_every(cluster.channels, CLEAN, TRANSFER_SECONDS, lambda host: {"older": age})
    return asked.require_all()


def _silent(waiting: dict[str, Channel]) -> dict[str, Ended]:
    """Ask the hosts for a sign of life, and stop waiting for those that were silent for too long."""
    silent = [host for host, channel in waiting.items() if channel.silent_for() > SILENCE_SECONDS]
    for host in silent:
        waiting.pop(host).give_up()
    for channel in waiting.values():
        channel.post(TIME)
    return {host: Ended(LOST, f"silent for {SILENCE_SECONDS:.0f} s", "") for host in silent}


def _refused(waiting: dict[str, Channel], posted: Mapping[str, Future[Nothing]]) -> dict[str, Ended]:
    """Stop waiting for the hosts whose agent could not even start the command: no report follows."""
    refused = {}
    for host in [*waiting]:
        error = posted[host].exception() if posted[host].done() else None
        # A connection that is gone is reported too.
        if isinstance(error, MusterError) and not isinstance(error, LostError):
            del waiting[host]
            refused[host] = Ended(LOST, error.reason, "")
    return refused


def _ended(report: Report) -> Ended:
    if isinstance(report, Lost) and report.reason.kind == "host.nonsense":
        return Ended(LOST, report.reason.reason, "")
    if not isinstance(report, Ran):
        return Ended(LOST, "the SSH connection to its agent is gone", "")
    output = report.output.decode(errors="replace")
    if report.cut:
        output += f"\n({report.cut} bytes more)\n"
    if report.timed_out:
        stuck = (
            f"; {report.left} of its processes cannot be ended (stuck in the kernel)" if report.left else ""
        )
        return Ended(TIMED_OUT, f"not over in time{stuck}", output)
    return Ended(status_of(report.code), describe_code(report.code) if report.code else "", output)
