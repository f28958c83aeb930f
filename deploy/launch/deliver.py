"""Delivers a launch to the hosts: its code and files, and the image of its containers.

A host gets only the contents that it lacks.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import astuple
from functools import lru_cache, partial
from pathlib import Path

from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.fanout import on_every
from ..connect.pipe import LostError
from ..connect.requests.hosts import FREE_PORT, LOAD
from ..connect.requests.launch import CONTAINER, CONTAINER_START, MISSING, PREPARE, STORE, Missing, Prepared
from ..connect.requests.request import Nothing
from ..console.progress import OnStage, show_no_stage
from ..errors import MusterError, UnfitError
from ..hosts.containers import EngineName, HostImage, push_commands, require_same
from ..plan.launch_plan import HostPlan, LaunchPlan
from ..plan.source_tree import Tree
from ..plan.spec import LaunchSpec
from .stages import DeliveryStage

# A host that lacks the image fetches it: as long as it reports that it is busy, it has time.
LOOK_SECONDS, PULL_SECONDS = 300.0, 6 * 3600.0
# Messages of engines if a registry asks for a login; Docker's registry answers so for unknown names too.
_REFUSED = re.compile(r"(?i)no basic auth credentials|unauthorized|denied|authentication required")
_SURVEY = Path(__file__).parents[1] / "agent" / "container" / "survey.py"


class LaunchImages:
    """The image that a launch names, on each host. `say` gets a line for hosts that fetch it."""

    def __init__(self, spec: LaunchSpec, say: Callable[[str], None]) -> None:
        self._image, self._engine, self._say = spec.image, spec.engine, say
        self._survey = _SURVEY.read_bytes()
        self._answers: dict[str, Future[HostImage]] = {}

    def ask(self, channel: Channel) -> None:
        """Ask a host for the image while other hosts are still connecting."""
        self._answers[channel.host] = self._post(channel, pull=False)

    def require(self, cluster: Cluster, *, pull: bool) -> Mapping[str, HostImage]:
        """The image of every host; `UnfitError` where it is missing or another. `pull`: fetch it."""
        channels = cluster.channels
        for host in channels.keys() - self._answers.keys():
            self.ask(channels[host])

        def look(host: str) -> HostImage:
            return channels[host].wait(self._answers.pop(host), LOOK_SECONDS)

        images = on_every(channels, look, interrupted=cluster.close).require_all()
        if lacking := [host for host, image in images.items() if not image.id]:
            if not pull or images[lacking[0]].engine == "apptainer":
                raise UnfitError((host, self._lacks(images[host])) for host in lacking)
            self._say(f"{', '.join(lacking)}: fetching {self._image}")
            fetched = on_every(
                lacking,
                lambda host: self._fetch(channels[host], images[host].engine),
                interrupted=cluster.close,
            )
            images |= fetched.require_all()
        require_same(self._image, images)
        return images

    def _fetch(self, channel: Channel, engine: EngineName) -> HostImage:
        try:
            return channel.wait(self._post(channel, pull=True), PULL_SECONDS)
        except LostError:
            raise
        except MusterError as error:
            login = (
                f"log in to its registry there ({engine} login), or " if _REFUSED.search(error.reason) else ""
            )
            bring = push_commands(self._image, engine)
            raise MusterError(
                f"{error.reason}; {login}bring it from here: {bring}", host=channel.host
            ) from None

    def _post(self, channel: Channel, *, pull: bool) -> Future[HostImage]:
        return channel.post(CONTAINER, self._survey, image=self._image, engine=self._engine, pull=pull)

    def _lacks(self, image: HostImage) -> str:
        if image.engine == "apptainer":
            return f"there is no {self._image}; bring it: {push_commands(self._image, image.engine)}"
        return (
            f"{image.engine} has no image {self._image}; a launch lets the host fetch it, a dry run "
            f"does not; or bring it from here: {push_commands(self._image, image.engine)}"
        )


DELIVERY_SECONDS, MISSING_SECONDS, CONTAINER_SECONDS = 600.0, 30.0, 150.0
# The time that a host has to make a job's folder from its store, and the extra time for each file and MiB.
PREPARE_SECONDS, FILE_SECONDS, MIB_SECONDS = 30.0, 0.02, 0.5
# Contents are sent in archives of about this size: a host stores one while the next is packed and sent.
ARCHIVE_BYTES, ARCHIVES_KEPT = 1 << 22, 64


def deliver(
    plan: LaunchPlan, cluster: Cluster, contents: Sequence[Contents] = (), on_stage: OnStage = show_no_stage
) -> None:
    """Prepare the job's folder on every host at once; `UnfitError` names all hosts where that failed.

    A spare host only gets the contents.
    `contents`: those of the plan's trees, if `prepare_for` has already asked the hosts.
    """
    contents = contents or (Contents(plan.spec.tree), Contents(plan.spec.library))
    by_name = {host.host.name: host for host in plan.hosts}
    stage = DeliveryStage()
    on_stage(stage)

    def act(name: str) -> None:
        channel = cluster.channels[name]
        for tree in contents:
            tree.send(channel, stage)
        if name in by_name:
            _prepare(plan, by_name[name], channel, contents, stage)

    # A Ctrl-C closes the connections, because an answer could take minutes.
    on_every(cluster.channels, act, interrupted=cluster.close).require_all()


def prepare_for(
    contents: Sequence[Contents], channel: Channel, ask: Callable[[Channel], None] | None = None
) -> None:
    """Ask a host which contents it lacks while other hosts still connect; `ask`: sends further requests."""
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
        self._paths = {file.digest: file.path for file in tree.files}
        self._vanished: set[str] = set()
        self._archive = lru_cache(ARCHIVES_KEPT)(partial(tree.archive, vanished=self._vanished))
        self._answers: dict[str, Future[Missing]] = {}

    @property
    def tree(self) -> Tree:
        """The tree without the files that vanished before they were sent."""
        return self._tree.without(self._vanished) if self._vanished else self._tree

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
        files = {file.digest: file.path for file in self._tree.files if file.digest in {*damaged}}
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
    prepared = _post_prepare(plan, host, channel, contents)
    freed = channel.post(FREE_PORT)  # answered in order, so both take a single round trip
    started = _start_container(host, channel)
    if damaged := channel.wait(prepared, seconds).damaged:
        names = [name for tree in contents for name in tree.send_again(channel, damaged, stage)]
        if channel.wait(_post_prepare(plan, host, channel, contents), seconds).damaged:
            raise _lost_again(names, host)
        started = _start_container(host, channel)  # the host refused the first one: nothing was prepared
    channel.wait(freed, seconds)
    if started:
        channel.wait(started, seconds + CONTAINER_SECONDS)


def _lost_again(names: Sequence[str], host: HostPlan) -> MusterError:
    """The error for a disk that lost the same file twice."""
    files = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return MusterError(
        f"its disk does not keep {files or 'files of the code'}: they were damaged in ~/.muster/store, were "
        f"sent again, and are damaged again; look at dmesg there, and at the disk of df {host.folder}",
        host=host.host.name,
    )


def _post_prepare(
    plan: LaunchPlan, host: HostPlan, channel: Channel, contents: Sequence[Contents]
) -> Future[Prepared]:
    """Let a host make the job's folder."""
    code, library = (tree.tree for tree in contents)
    return channel.post(
        PREPARE,
        host=host.host.name,
        folder=host.folder,
        cwd=host.cwd,
        path=host.path,
        env=host.env,
        attempt=plan.spec.attempt,
        grace=plan.spec.grace,
        environment=plan.spec.environment,
        code=code.listing(),
        library=library.listing(),
        kept=host.kept,
        files=[astuple(file) for file in host.files],
        # Inside of a container they lead to its mounts.
        links=code.links_out() if host.container is None else [],
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
    """The time-out for making the folder of a job with these trees."""
    size = sum(FILE_SECONDS * len(tree.files) + MIB_SECONDS * tree.size / (1 << 20) for tree in trees)
    return PREPARE_SECONDS + size
