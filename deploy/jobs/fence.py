"""Which driver may run a job with a standby driver: the one that has claimed more than half of its hosts.

Each host lets a single driver claim it (deploy/agent/job/fence.py). Two drivers never both have more than
half of the hosts, so they never run the job at the same time.
"""

from __future__ import annotations

import contextlib

from ..connect.cluster import Cluster
from ..connect.fanout import on_every
from ..connect.pipe import OpenPipe
from ..connect.requests.jobs import CLAIM
from ..errors import MusterError
from ..plan.spec import LaunchSpec

OVER = 1 << 32
"""The term of a job that is over: no driver starts it again."""
CLAIM_SECONDS = 15.0


class TakenOverError(MusterError):
    """A newer driver has the job, or the job is over: this driver must end."""


def claim(cluster: Cluster, spec: LaunchSpec, term: int) -> None:
    """Claim the connected hosts; `UnfitError` for hosts that another driver uses.

    `TakenOverError` if a newer driver has had one of them; `MusterError` if these are not more than half.
    """
    require_majority(len(cluster.channels), spec)
    for keep in (False, True):  # a driver without a majority leaves no trace
        _claim(cluster, spec.job, term, keep=keep)


def _claim(cluster: Cluster, job: str, term: int, *, keep: bool) -> None:
    channels = cluster.channels
    answers = on_every(
        channels,
        lambda host: channels[host].ask(
            CLAIM, seconds=CLAIM_SECONDS, name=job, host=host, term=term, keep=keep
        ),
    )
    if newer := [host for host, answer in answers.results.items() if answer.newer]:
        raise TakenOverError(f"another driver has the job, or has ended it: {', '.join(newer)}")
    answers.require_all()


def has_majority(hosts: int, spec: LaunchSpec) -> bool:
    """Whether these are more than half of the job's hosts."""
    return 2 * hosts > len(spec.hosts)


def require_majority(hosts: int, spec: LaunchSpec) -> None:
    """`MusterError` if these are not more than half of the job's hosts."""
    if not has_majority(hosts, spec):
        raise MusterError(
            f"{hosts} of the job's {len(spec.hosts)} hosts are left; with --standby, more than half must be"
        )


def end(spec: LaunchSpec, open_pipe: OpenPipe) -> None:
    """Let no driver start the job any more, on all hosts that can be reached."""
    cluster = Cluster(spec.hosts, open_pipe, facts=False)
    with contextlib.suppress(MusterError), contextlib.closing(cluster):
        cluster.connect()
        claim(cluster, spec, OVER)
