"""Brings code and files to the hosts: each content only where it is missing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple

from ..connect.answers import MISSING, PREPARE, STORE, UNMEET
from ..connect.channel import Channel
from ..connect.cluster import CONNECTIONS_AT_ONCE, Cluster
from ..errors import MusterError, UnfitError
from ..plan.launch_plan import HostPlan, LaunchPlan
from ..plan.source_tree import Tree

DELIVERY_SECONDS = 600.0


def deliver(plan: LaunchPlan, cluster: Cluster) -> None:
    """Prepare the job's folder on every host at once; `UnfitError` names all hosts where that failed."""
    contents = (Contents(plan.tree), Contents(plan.library))
    with ThreadPoolExecutor(min(len(plan.hosts), CONNECTIONS_AT_ONCE)) as pool:
        try:
            done = list(pool.map(lambda host: _deliver(plan, host, cluster, contents), plan.hosts))
        except KeyboardInterrupt:
            cluster.close()  # so that nobody waits for an answer any more, which may be minutes away
            raise
    problems = [problem for problem in done if problem]
    if problems:
        raise UnfitError(problems)


class Contents:
    """The contents of a tree; hosts that lack the same ones are sent one archive, made once."""

    def __init__(self, tree: Tree) -> None:
        self._tree, self._lock = tree, threading.Lock()
        self._digests = [file.digest for file in tree.files if file.link is None]
        self._archived: tuple[Sequence[str], bytes] = ((), b"")

    def send(self, channel: Channel) -> None:
        """Send to a host's store what it does not have."""
        if missing := channel.ask(MISSING, digests=self._digests).missing:
            channel.ask(STORE, self._archive(missing), seconds=DELIVERY_SECONDS)

    def _archive(self, missing: Sequence[str]) -> bytes:
        with self._lock:
            if self._archived[0] != missing:
                self._archived = (missing, self._tree.archive(missing))
            return self._archived[1]


def _deliver(
    plan: LaunchPlan, host: HostPlan, cluster: Cluster, contents: Sequence[Contents]
) -> tuple[str, str] | None:
    channel = cluster.channels[host.host.name]
    try:
        for tree in contents:
            tree.send(channel)
        prepared = channel.post(
            PREPARE,
            host=host.host.name,
            folder=host.folder,
            cwd=host.cwd,
            path=host.path,
            env=host.env,
            attempt=plan.spec.attempt,
            code=plan.tree.listing(),
            library=plan.library.listing(),
            files=[astuple(file) for file in host.files],
        )
        freed = channel.post(UNMEET)  # answered in order: the line is not waited for twice
        channel.wait(prepared, DELIVERY_SECONDS)
        channel.wait(freed, DELIVERY_SECONDS)
    except MusterError as error:
        return host.host.name, error.reason
    return None
