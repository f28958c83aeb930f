"""Sends code and files to the hosts. A host gets only the contents that it lacks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import astuple
from functools import lru_cache

from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.fanout import on_every
from ..connect.requests.containers import CONTAINER_START
from ..connect.requests.hosts import FREE_PORT, LOAD
from ..connect.requests.launch import MISSING, PREPARE, STORE, Missing, Prepared
from ..connect.requests.request import Nothing
from ..errors import MusterError
from ..plan.launch_plan import HostPlan, LaunchPlan
from ..plan.source_tree import Tree

DELIVERY_SECONDS, MISSING_SECONDS, CONTAINER_SECONDS = 600.0, 30.0, 150.0
# The time that a host has to make a job's folder from its store, and the extra time for each file and MiB.
PREPARE_SECONDS, FILE_SECONDS, MIB_SECONDS = 30.0, 0.02, 0.5
# Contents are sent in archives of about this size: a host stores one while the next is packed and sent.
ARCHIVE_BYTES, ARCHIVES_KEPT = 1 << 22, 64


def deliver(plan: LaunchPlan, cluster: Cluster, contents: Sequence[Contents] = ()) -> None:
    """Prepare the job's folder on every host at once; `UnfitError` names all hosts where that failed.

    `contents`: the contents of the plan's trees, if the hosts were asked before which of them they lack.
    """
    contents = contents or (Contents(plan.tree), Contents(plan.library))
    by_name = {host.host.name: host for host in plan.hosts}

    def act(name: str) -> None:
        _deliver(plan, by_name[name], cluster.channels[name], contents)

    # A Ctrl-C closes the connections, because an answer could take minutes.
    on_every(by_name, act, interrupted=cluster.close).require_all()


def prepare_for(
    contents: Sequence[Contents], channel: Channel, ask: Callable[[Channel], None] | None = None
) -> None:
    """Ask a host for what it can do for a launch while other hosts are still connecting; `ask`: asks more."""
    if ask:
        ask(channel)
    for tree in contents:
        tree.ask(channel)
    channel.post(LOAD, words=["reach", "prepare"])


class Contents:
    """The contents of a tree. Hosts that lack the same contents get the same archives, each made once."""

    def __init__(self, tree: Tree) -> None:
        self._tree, self._lock = tree, threading.Lock()
        self._sizes = {file.digest: file.size for file in tree.files if file.link is None}
        self._archive = lru_cache(ARCHIVES_KEPT)(tree.archive)
        self._asked: dict[str, Future[Missing]] = {}

    def ask(self, channel: Channel, *, verify: bool = False) -> None:
        """Ask a host which contents it lacks; `send` waits for the answer. `verify`: it reads the others."""
        self._asked[channel.host] = channel.post(MISSING, digests=[*self._sizes], verify=verify)

    def send(self, channel: Channel) -> None:
        """Send the contents that a host lacks to its store."""
        if channel.host not in self._asked:
            self.ask(channel)
        seconds = MISSING_SECONDS + preparation_seconds(self._tree)
        self._send(channel, channel.wait(self._asked.pop(channel.host), seconds).missing)

    def send_again(self, channel: Channel, damaged: Sequence[str]) -> list[str]:
        """Send those of the damaged contents that are of this tree; returns the paths of their files."""
        files = {file.digest: file.path for file in self._tree.files if file.digest in {*damaged}}
        self._send(channel, tuple(sorted(files)))
        return sorted(files.values())

    def _send(self, channel: Channel, digests: Sequence[str]) -> None:
        stored: deque[Future[Nothing]] = deque()
        for batch in self._batches(digests):
            with self._lock:  # other hosts wait for the same archive
                archive = self._archive(batch)
            stored.append(channel.post(STORE, archive))
            if len(stored) > 1:
                channel.wait(stored.popleft(), DELIVERY_SECONDS)
        while stored:
            channel.wait(stored.popleft(), DELIVERY_SECONDS)

    def _batches(self, digests: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """The digests, divided so that an archive has ARCHIVE_BYTES of contents, or a single content."""
        batch: list[str] = []
        size = 0
        for digest in filter(self._sizes.__contains__, digests):  # a host may ask for anything
            if batch and size + self._sizes[digest] > ARCHIVE_BYTES:
                yield tuple(batch)
                batch, size = [], 0
            batch.append(digest)
            size += self._sizes[digest]
        if batch:
            yield tuple(batch)


def _deliver(plan: LaunchPlan, host: HostPlan, channel: Channel, contents: Sequence[Contents]) -> None:
    for tree in contents:
        tree.send(channel)
    seconds = preparation_seconds(plan.tree, plan.library)
    prepared = _post_prepare(plan, host, channel)
    freed = channel.post(FREE_PORT)  # answered in order, so both take a single round trip
    started = _start_container(host, channel)
    if damaged := channel.wait(prepared, seconds).damaged:
        names = [name for tree in contents for name in tree.send_again(channel, damaged)]
        if channel.wait(_post_prepare(plan, host, channel), seconds).damaged:
            raise _lost_again(names, host)
        started = _start_container(host, channel)  # the host refused the first one: nothing was prepared
    channel.wait(freed, seconds)
    if started:
        channel.wait(started, seconds + CONTAINER_SECONDS)


def _lost_again(names: Sequence[str], host: HostPlan) -> MusterError:
    """A disk that has lost a file, and a minute later the same file again, needs its owner."""
    files = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return MusterError(
        f"its disk does not keep {files or 'files of the code'}: they were damaged in ~/.muster/store, were "
        f"sent again, and are damaged again; look at dmesg there, and at the disk of df {host.folder}",
        host=host.host.name,
    )


def _post_prepare(plan: LaunchPlan, host: HostPlan, channel: Channel) -> Future[Prepared]:
    """Let a host make the job's folder."""
    return channel.post(
        PREPARE,
        host=host.host.name,
        folder=host.folder,
        cwd=host.cwd,
        path=host.path,
        env=host.env,
        attempt=plan.spec.attempt,
        stdin=plan.spec.stdin,
        environment=plan.spec.environment,
        code=plan.tree.listing(),
        library=plan.library.listing(),
        files=[astuple(file) for file in host.files],
        # Inside of a container they lead to what is mounted there.
        links=plan.tree.links_out() if host.container is None else [],
    )


def _start_container(host: HostPlan, channel: Channel) -> Future[Nothing] | None:
    """Let a host start its container, if the ranks run in one."""
    if host.container is None:
        return None
    return channel.post(
        CONTAINER_START,
        argv=host.container.argv,
        remove=host.container.remove,
        launcher_inside=host.container.launcher_inside,
        environment=dict(host.container.environment),
    )


def preparation_seconds(*trees: Tree) -> float:
    """How long a host may take to make the folder of a job that consists of these trees."""
    size = sum(FILE_SECONDS * len(tree.files) + MIB_SECONDS * tree.size / (1 << 20) for tree in trees)
    return PREPARE_SECONDS + size
