"""Brings code and files to the hosts: each content only where it is missing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple

from deploy.channel import Channel
from deploy.cluster import CONNECTIONS_AT_ONCE, Cluster
from deploy.errors import MusterError, UnfitError
from deploy.plan import HostPlan, LaunchPlan
from deploy.tree import Tree

DELIVERY_SECONDS = 600.0


def deliver(plan: LaunchPlan, cluster: Cluster) -> None:
    """Prepare the job's folder on every host at once; `UnfitError` names all hosts where that failed."""
    with ThreadPoolExecutor(min(len(plan.hosts), CONNECTIONS_AT_ONCE)) as pool:
        try:
            done = list(pool.map(lambda host: _deliver(plan, host, cluster), plan.hosts))
        except KeyboardInterrupt:
            cluster.close()  # so that nobody waits for an answer any more, which may be minutes away
            raise
    problems = [problem for problem in done if problem]
    if problems:
        raise UnfitError(problems)


def send_contents(tree: Tree, channel: Channel) -> None:
    """Send to a host's store what it does not have."""
    digests = [file.digest for file in tree.files if file.link is None]
    if missing := channel.ask("missing", digests=digests)["missing"]:
        channel.ask("store", tree.archive(missing), seconds=DELIVERY_SECONDS)


def _deliver(plan: LaunchPlan, host: HostPlan, cluster: Cluster) -> tuple[str, str] | None:
    channel = cluster.channels[host.host.name]
    try:
        send_contents(plan.tree, channel)
        channel.ask(
            "prepare",
            seconds=DELIVERY_SECONDS,
            host=host.host.name,
            folder=host.folder,
            cwd=host.cwd,
            path=host.path,
            env=host.env,
            attempt=plan.spec.attempt,
            code=plan.tree.listing(),
            files=[astuple(file) for file in host.files],
        )
        channel.ask("unmeet")
    except MusterError as error:
        return host.host.name, str(error).removeprefix(f"{host.host.name}: ")
    return None
