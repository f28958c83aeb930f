"""Delivers a launch to the hosts: its code and files.

A host gets only the contents that it lacks.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import astuple
from functools import lru_cache

from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.fanout import on_every
from ..connect.requests import FREE_PORT, LOAD, MISSING, PREPARE, STORE, Missing, Nothing, Prepared
from ..errors import MusterError
from ..plan.launch_plan import HostPlan, LaunchPlan
from ..plan.source_tree import Edits, Tree
from .stages import DeliveryStage

DELIVERY_SECONDS, MISSING_SECONDS = 600.0, 30.0
# The time that a host has to make a job's folder from its store, and the extra time for each file and MiB.
PREPARE_SECONDS, FILE_SECONDS, MIB_SECONDS = 30.0, 0.02, 0.5
# Contents are sent in archives of about this size: a host stores one while the next is packed and sent.
ARCHIVE_BYTES, ARCHIVES_KEPT = 1 << 22, 64


def deliver(plan: LaunchPlan, cluster: Cluster, contents: Sequence[Contents], stage: DeliveryStage) -> None:
    """Prepare the job's folder on every host at once; `UnfitError` names all hosts where that failed.

    A spare host only gets the contents: those of the plan's trees.
    """
    by_name = {host.host.name: host for host in plan.hosts}

    def act(name: str) -> None:
        channel = cluster.channels[name]
        for tree in contents:
            tree.send(channel, stage)
        if name in by_name:
            _prepare(plan, by_name[name], channel, contents, stage)

    # A Ctrl-C closes the connections, because an answer could take minutes.
    on_every(cluster.channels, act, interrupted=cluster.close).require_all()


def prepare_for(contents: Sequence[Contents], channel: Channel) -> None:
    """Ask a host which contents it lacks while other hosts still connect."""
    for tree in contents:
        tree.ask(channel)
    channel.post(LOAD, words=["reach", "prepare"])


class Contents:
    """The contents of a tree. Hosts that lack the same contents get the same archives, each made once."""

    def __init__(self, tree: Tree) -> None:
        self._tree, self._lock = tree, threading.Lock()
        self._sizes = {file.digest: file.size for file in tree.files if file.link is None}
        self._paths = {file.digest: file.path for file in tree.files}
        self.edits = Edits()
        self._archive = lru_cache(ARCHIVES_KEPT)(self._archive_of)
        self._answers: dict[str, Future[Missing]] = {}

    @property
    def tree(self) -> Tree:
        """The tree as it was sent: files may have vanished or changed since they were listed."""
        edited = self.edits.vanished or self.edits.changed
        return self._tree.after(self.edits) if edited else self._tree

    def _archive_of(self, digests: Sequence[str]) -> bytes:
        archive = self.tree.archive(digests, self.edits)
        for file in self.edits.changed.values():
            self._sizes[file.digest], self._paths[file.digest] = file.size, file.path
        return archive

    def ask(self, channel: Channel, *, verify: bool = False) -> None:
        """Ask a host which contents it lacks; `send` waits for the answer. `verify`: it checks the others."""
        self._answers[channel.host] = channel.post(MISSING, digests=[*self._sizes], verify=verify)

    def send(self, channel: Channel, stage: DeliveryStage) -> None:
        """Send the contents that a host lacks to its store."""
        if channel.host not in self._answers:
            self.ask(channel)
        seconds = MISSING_SECONDS + preparation_seconds(self._tree)
        self._send(channel, channel.wait(self._answers.pop(channel.host), seconds).missing, stage)

    def send_again(self, channel: Channel, damaged: Sequence[str], stage: DeliveryStage) -> list[str]:
        """Send those of the damaged contents that are of this tree; returns the paths of their files."""
        files = {file.digest: file.path for file in self.tree.files if file.digest in {*damaged}}
        self._send(channel, tuple(sorted(files)), stage)
        return sorted(files.values())

    def _send(self, channel: Channel, missing: Sequence[str], stage: DeliveryStage) -> None:
        digests = [*filter(self._sizes.__contains__, missing)]  # a host may ask for anything
        sending = stage.send(channel, {self._paths[digest]: self._sizes[digest] for digest in digests})
        stored: deque[Future[Nothing]] = deque()
        for batch in self._batches(digests):
            with self._lock:  # other hosts wait for the same archive
                archive = self._archive(batch)
            sending.begin(sum(map(self._sizes.__getitem__, batch)), len(archive))
            stored.append(channel.post(STORE, archive))
            if len(stored) > 1:
                channel.wait(stored.popleft(), DELIVERY_SECONDS)
        while stored:
            channel.wait(stored.popleft(), DELIVERY_SECONDS)

    def _batches(self, digests: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """The digests, divided so that an archive has ARCHIVE_BYTES of contents, or a single content."""
        batch: list[str] = []
        size = 0
        for digest in digests:
            if batch and size + self._sizes[digest] > ARCHIVE_BYTES:
                yield tuple(batch)
                batch, size = [], 0
            batch.append(digest)
            size += self._sizes[digest]
        if batch:
            yield tuple(batch)


def _prepare(
    plan: LaunchPlan, host: HostPlan, channel: Channel, contents: Sequence[Contents], stage: DeliveryStage
) -> None:
    seconds = preparation_seconds(plan.spec.tree, plan.spec.library)
    code, library = (tree.tree for tree in contents)  # other hosts may find more edits meanwhile
    prepared = _post_prepare(plan, host, channel, code, library)
    freed = channel.post(FREE_PORT)  # answered in order, so both take a single round trip
    if damaged := channel.wait(prepared, seconds).damaged:
        names = [name for tree in contents for name in tree.send_again(channel, damaged, stage)]
        if channel.wait(_post_prepare(plan, host, channel, code, library), seconds).damaged:
            raise _lost_again(names, host)
    channel.wait(freed, seconds)


def _lost_again(names: Sequence[str], host: HostPlan) -> MusterError:
    """The error for a disk that lost the same file twice."""
    files = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return MusterError(
        f"its disk does not keep {files or 'files of the code'}: they were damaged in ~/.muster/store, were "
        f"sent again, and are damaged again; look at dmesg there, and at the disk of df {host.folder}",
        host=host.host.name,
    )


def _post_prepare(
    plan: LaunchPlan, host: HostPlan, channel: Channel, code: Tree, library: Tree
) -> Future[Prepared]:
    """Let a host make the job's folder."""
    return channel.post(
        PREPARE,
        host=host.host.name,
        folder=host.folder,
        cwd=host.cwd,
        path=host.path,
        env=host.env,
        attempt=plan.spec.attempt,
        grace=plan.spec.grace,
        code=code.listing(),
        library=library.listing(),
        kept=host.kept,
        files=[astuple(file) for file in host.files],
        links=[] if host.own_files else code.links_out(),
    )


def preparation_seconds(*trees: Tree) -> float:
    """The time-out for making the folder of a job with these trees."""
    size = sum(FILE_SECONDS * len(tree.files) + MIB_SECONDS * tree.size / (1 << 20) for tree in trees)
    return PREPARE_SECONDS + size
