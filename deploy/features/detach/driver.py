"""Detaches a job: sends the driver's code to the head, where the driver runs independently of this one."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from ...core.connect.cluster import Cluster
from ...core.connect.pipe import LostError, SilentError
from ...core.connect.reports import Lost, Report
from ...core.connect.requests import Nothing, Request
from ...core.connect.silence import FROZEN
from ...core.decode import AtMost, Between, lazy_dataclass
from ...core.errors import MusterError, UnfitError
from ...core.hosts.bounds import Name, Text
from ...core.job.deliver import DELIVERY_SECONDS, Contents
from ...core.job.driver_on_host import own_code
from ...core.job.stages import DeliveryStage
from ...core.plan.spec import LaunchSpec
from ...core.text.progress import Progress


@lazy_dataclass(frozen=True)
class Detached(Report, event="detached"):
    """The driver of a detached job has started the ranks (`title`), or why it could not."""

    title: Text = ""
    error: Text = ""
    unfit: Annotated[tuple[tuple[Name, Text], ...], AtMost(4096)] = ()
    exit_status: Annotated[int, Between(0, 255)] = 1


DETACH = Request("detach", Nothing)
PYTHON = (3, 10)


def detach(spec: LaunchSpec, cluster: Cluster, progress: Progress) -> str:
    """Start the job on its head, the only host of `cluster`; returns its title once the ranks are started.

    Raises the error that kept the job from starting, `UnfitError` for hosts that the head does not reach.
    Then nothing runs.
    """
    head = cluster.hosts[0].name
    if tuple(map(int, (version := cluster.facts[head].python).split(".")[:2])) < PYTHON:
        reason = f"Python {version}; the driver of a detached job needs 3.10 or newer"
        raise UnfitError([(head, f"{reason}; name another with --python")])
    code = own_code()
    progress.stage(stage := DeliveryStage())
    trees = [Contents(tree) for tree in (spec.tree, spec.library, code)]
    for contents in trees:
        contents.ask(cluster.channels[head], verify=True)  # its driver has no other source of them
        contents.send(cluster.channels[head], stage)
    spec = replace(spec, tree=trees[0].tree)
    progress.stage(f"waiting until the driver on {head} has started the job")
    cluster.channels[head].ask(DETACH, name=spec.job, code=code.listing(), job=spec.as_json())
    return _await_report(cluster)


def _await_report(cluster: Cluster) -> str:
    """Wait for the first report of the job's driver, as long as its host is not silent."""
    head = cluster.hosts[0].name
    event = cluster.hear(DELIVERY_SECONDS)
    if event is None:
        raise LostError("the job's driver does not report its start", FROZEN, host=head)
    report = event.report
    if isinstance(report, Detached):
        return _title(report)
    if isinstance(report, Lost) and (
        isinstance(report.reason, SilentError) or report.reason.kind == "host.protocol-error"
    ):
        raise report.reason
    raise LostError("the SSH connection broke; see with muster status whether the job runs", host=head)


def _title(report: Detached) -> str:
    if report.title:
        return report.title
    if report.unfit:
        raise UnfitError(report.unfit)
    error = MusterError(report.error)
    error.exit_status = report.exit_status or 1
    raise error
