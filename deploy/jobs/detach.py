"""Hands a job over to its head: the driver's own code goes there, and runs there when this driver is gone."""

from __future__ import annotations

from pathlib import Path
from queue import Empty

from ..connect.channel import LostError
from ..connect.cluster import Cluster
from ..errors import MusterError, UnfitError
from ..launch.deliver import DELIVERY_SECONDS, Contents
from ..plan.source_tree import Tree, of_package
from .job import Job

PYTHON = (3, 10)


def detach(job: Job, cluster: Cluster) -> str:
    """Start the job on its head, the only host of `cluster`; returns its title once the ranks are started.

    Raises what kept it from starting, `UnfitError` for hosts that the head does not reach: nothing runs then.
    """
    head = cluster.hosts[0].name
    _require_python(head, cluster.facts[head].python)
    code = own_code()
    for tree in (job.tree, job.library, code):
        Contents(tree).send(cluster.channels[head])
    cluster.channels[head].ask("detach", name=job.spec.job, code=code.listing(), job=job.as_json())
    return _first_word(cluster)


def own_code() -> Tree:
    """What this driver is made of, without its commands: standard library only."""
    return of_package(Path(__file__).parents[1], leave_out=("cli",))


def _require_python(head: str, version: str) -> None:
    if tuple(map(int, version.split(".")[:2])) < PYTHON:
        reason = f"Python {version}; the driver of a detached job needs 3.10 or newer there"
        raise UnfitError([(head, f"{reason}; name another with --python")])


def _first_word(cluster: Cluster) -> str:
    head = cluster.hosts[0].name
    try:
        said = cluster.events.get(timeout=DELIVERY_SECONDS).frame
    except Empty:
        raise LostError(f"{head}: the job's driver there says nothing") from None
    if said["event"] != "detached":
        raise LostError(f"{head}: the SSH connection broke; see with muster status whether the job runs")
    if "title" in said:
        return str(said["title"])
    if said.get("unfit"):
        raise UnfitError((str(name), str(reason)) for name, reason in said["unfit"])
    error = MusterError(str(said["error"]))
    error.exit_status = int(said.get("exit_status", 1))
    raise error
