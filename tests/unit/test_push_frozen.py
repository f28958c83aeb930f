"""An image on its way to hosts, one of which stops in the middle of it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.connect.inbox import Inbox
from muster.deploy.core.connect.listener import Listener
from muster.deploy.core.connect.pipe import LostError
from muster.deploy.core.connect.reports import Event, FileGot, FileStuck, Report
from muster.deploy.core.connect.requests import Nothing, Request
from muster.deploy.core.content.messages import BLOB_COMPLETE, BLOB_PULL, BLOB_SERVE, FilesServed
from muster.deploy.core.errors import HostError, MusterError
from muster.deploy.core.hosts import hostfile
from muster.deploy.features.image import image_push as push
from muster.deploy.features.image.image_push import IMAGE as IMAGE_OF_HOST
from muster.deploy.features.image.image_push import IMAGE_LOAD, ImageLoaded, PresentImage, compressed
from tests.unit.test_push_plan import DIFF_IDS, IMAGE, saved
from tests.waiting import PATIENCE


class Channel:
    """A host that takes everything, or one that is frozen as soon as a layer comes."""

    def __init__(self, host: str, events: Inbox, *, frozen: bool) -> None:
        self.host, self.events, self.frozen = host, events, frozen
        self.cut = threading.Event()
        self.sent_to = self.ended = False
        self.refuses: Request[Any] | None = None
        self.greeted = self.remote = True
        self.loaded: Callable[[], None] = lambda: None

    def post(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.frozen and payload:
            self.sent_to = True
            assert self.cut.wait(PATIENCE)
            future.set_exception(LostError("the SSH connection broke", host=self.host))
        elif request is self.refuses:
            future.set_exception(MusterError("no space left", host=self.host))
        else:
            served = FilesServed(20123, ("10.0.0.1",), {}, "ef" * 16)
            answers: dict[Request[Any], Any] = {
                BLOB_SERVE: served,
                IMAGE_OF_HOST: PresentImage("", "", (), 0),
            }
            future.set_result(answers.get(request, Nothing()))
        if request is IMAGE_LOAD:
            self.loaded()
            self.report(ImageLoaded(id=IMAGE.id))
        if request is BLOB_COMPLETE and not self.sent_to:
            self.report(FileGot(words["digest"]))
        if request is BLOB_PULL:
            self.report(FileStuck(words["digest"], 0, "nobody gives it"))
        return future

    def ask(self, request: Request[Any], payload: bytes = b"", *, seconds: float = 0.0, **words: Any) -> Any:
        return self.post(request, payload, **words).result()

    def wait(self, future: Future[Any], seconds: float, since: float | None = None) -> Any:
        return future.result(PATIENCE)

    def report(self, report: Report) -> None:
        self.events.put(Event(self.host, report), wait=False)

    def silent_for(self) -> float:
        return 1000.0 if self.sent_to else 0.0

    def give_up(self) -> None:
        pass

    def close(self) -> None:
        self.cut.set()


def cluster_of(events: Inbox, channels: Any) -> Any:
    cluster: Any = Listener(events, channels)
    cluster.hosts = hostfile.parse("\n".join(channels))
    cluster.data_addresses = cluster.peer_addresses = lambda host: []
    return cluster


@pytest.mark.parametrize("frozen", ["node1", "node2", ""])
def test_a_host_that_freezes_does_not_keep_the_image_from_others(tmp_path: Path, frozen: str) -> None:
    image, events = compressed(saved("old"), DIFF_IDS, tmp_path), Inbox()
    channels = {name: Channel(name, events, frozen=name == frozen) for name in ("node1", "node2", "node3")}
    cluster = cluster_of(events, channels)
    active = push.ImageTransfer(cluster, IMAGE, image, lambda have, total: None)
    pushed = active.push(dict.fromkeys(channels, DIFF_IDS), {})
    errors = {name: outcome.error for name, outcome in pushed.hosts.items() if outcome.error}
    assert list(errors) == ([frozen] if frozen else [])
    assert all(error.startswith("silent for 10 s") for error in errors.values())


@pytest.mark.parametrize("refused", [BLOB_SERVE, IMAGE_OF_HOST], ids=lambda request: request.name)
def test_a_host_that_is_down_or_refuses_does_not_keep_the_image_from_others(
    tmp_path: Path, refused: Request[Any]
) -> None:
    image, events = compressed(saved("old"), DIFF_IDS, tmp_path), Inbox()
    channels = {name: Channel(name, events, frozen=False) for name in ("node2", "node3")}
    channels["node2"].refuses = refused
    cluster = cluster_of(events, channels)
    cluster.hosts = hostfile.parse("node[1-3]")
    failed: dict[str, MusterError] = {"node1": HostError("ssh.unreachable", "no route to it")}
    lacking = push.survey(cluster, IMAGE, failed)
    pushed = push.ImageTransfer(cluster, IMAGE, image, lambda have, total: None).push(lacking, failed)
    assert pushed.failed
    assert {host: outcome.error for host, outcome in pushed.hosts.items()} == {
        "node1": "no route to it",
        "node2": "no space left",
        "node3": "",
    }


def test_an_image_that_has_a_layer_twice_is_loaded_once(tmp_path: Path) -> None:
    """BuildKit's layer of a step that changes nothing is always the same."""
    image, events = compressed(saved("old"), DIFF_IDS, tmp_path), Inbox()
    channels = {name: Channel(name, events, frozen=False) for name in ("node1", "node2")}
    loads: list[str] = []
    for name, channel in channels.items():
        channel.loaded = partial(loads.append, name)
    cluster = cluster_of(events, channels)
    twice = (*DIFF_IDS, DIFF_IDS[0])
    of_twice = dataclasses.replace(IMAGE, layers=twice)
    pushed = push.ImageTransfer(cluster, of_twice, image, lambda have, total: None).push(
        dict.fromkeys(channels, twice), {}
    )
    assert [outcome.error for outcome in pushed.hosts.values()] == ["", ""]
    assert sorted(loads) == ["node1", "node2"]
