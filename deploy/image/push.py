"""Brings an image to every host without a registry. This machine sends each missing layer only once.

A missing layer goes to a first host, and from there through a tree of hosts (`relay`) while it still arrives.
If a push breaks off, what has arrived stays on the hosts, and the next push goes on from there.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from ..connect.answers import (
    IMAGE,
    IMAGE_COMPLETE,
    IMAGE_FORGET,
    IMAGE_LOAD,
    IMAGE_PULL,
    IMAGE_SERVE,
    IMAGE_TAKE,
    ImageThere,
    Nothing,
)
from ..connect.cluster import Cluster
from ..connect.fanout import ask_every
from ..connect.reports import Fed, ImageGot, ImageHave, ImageLoaded, ImageStuck, Lost, Report
from ..errors import MusterError
from .archive import Archive, Layer
from .engine import Engine, Image
from .relay import ancestors, by_what_is_there

ANSWER_SECONDS = 60.0
SILENCE_SECONDS = 90.0  # without a report of any host that still needs something
FROZEN_SECONDS = 20.0  # a working agent reports every 2 s, also while it receives something
LOAD_SECONDS = 900.0
PIECE = 1 << 20
PIECES_AT_ONCE = 8
Tell = Callable[[int, int], None]


@dataclass
class Outcome:
    """The outcome on a host. `layers` and `size` (compressed bytes): what it lacked."""

    layers: int = 0
    size: int = 0
    had_it: bool = False
    error: str = ""


@dataclass
class Pushed:
    """The outcome of a push. `sent`: the bytes that left this machine."""

    hosts: dict[str, Outcome] = field(default_factory=dict)
    sent: int = 0

    @property
    def failed(self) -> bool:
        """Whether any host did not get the image."""
        return any(outcome.error for outcome in self.hosts.values())


def survey(cluster: Cluster, image: Image) -> dict[str, tuple[str, ...] | None]:
    """The layers that each host lacks (diff IDs); None if it has the image. `UnfitError` for failed hosts."""
    words = {"name": image.name, "layers": list(image.layers)}
    answers = ask_every(cluster.channels, IMAGE, ANSWER_SECONDS, lambda host: words).require_all()
    return {
        host: None if _same(image, held) else image.layers[held.common :] for host, held in answers.items()
    }


def _same(image: Image, answer: ImageThere | ImageLoaded) -> bool:
    """Whether a host has the image. Engines with containerd's store give it another id."""
    return answer.id == image.id or (answer.created == image.created and answer.layers == image.layers)


def prepare(
    engine: Engine, image: Image, archive: Archive, lacking: Mapping[str, tuple[str, ...] | None]
) -> bytes:
    """Compress every layer that a host lacks into the archive; returns the image's configuration."""
    wanted = {diff_id for diff_ids in lacking.values() for diff_id in diff_ids or ()}
    if all(diff_ids is None for diff_ids in lacking.values()):
        return b""
    known = archive.configuration(image.id)
    if known is not None and all(archive.layer(diff_id) for diff_id in wanted):
        return known
    return archive.take(engine.save(image), image.id, wanted)


class Push:
    """The push of an image. Only `_feed` runs on its own thread, all else on the caller's thread."""

    def __init__(
        self, cluster: Cluster, image: Image, archive: Archive, configuration: bytes, tell: Tell
    ) -> None:
        self.cluster, self.image, self.archive, self.tell = cluster, image, archive, tell
        self.configuration = configuration
        self.pushed = Pushed()
        self._word = secrets.token_hex(16)
        self._ports: dict[str, int] = {}
        self._have: dict[tuple[str, str], int] = {}
        self._files: dict[str, dict[str, Layer]] = {}
        self._waiting: dict[str, set[str]] = {}
        self._loading: set[str] = set()
        self._stuck: SimpleQueue[tuple[str, Layer] | None] = SimpleQueue()

    def carry(self, lacking: Mapping[str, tuple[str, ...] | None]) -> Pushed:
        """Bring every host the layers that it lacks, and let its engine load the image."""
        for host, diff_ids in lacking.items():
            layers = [self._layer(diff_id) for diff_id in diff_ids or ()]
            size = sum(layer.size for layer in layers)
            self.pushed.hosts[host] = Outcome(len(layers), size, had_it=diff_ids is None)
            if diff_ids is not None:
                self._files[host] = {layer.digest: layer for layer in layers}
                self._waiting[host] = set(self._files[host])
        self._serve()
        threading.Thread(target=self._feed, daemon=True).start()
        for host in [host for host, files in self._waiting.items() if not files]:
            self._load(host)
        self._watch()
        self._stuck.put(None)
        self._tidy()
        return self.pushed

    def _layer(self, diff_id: str) -> Layer:
        layer = self.archive.layer(diff_id)
        if layer is None:
            raise MusterError(f"{self.archive.folder}: the layer {diff_id} is gone; push again")
        return layer

    def _serve(self) -> None:
        """Let each host that lacks a layer serve the others, and learn how much of each file it has."""
        channels = {host: self.cluster.channels[host] for host in self._files}

        def words(host: str) -> dict[str, Any]:
            return {"host": host, "digests": list(self._files[host]), "word": self._word}

        for host, served in ask_every(channels, IMAGE_SERVE, ANSWER_SECONDS, words).require_all().items():
            self._ports[host] = served.port
            self._have |= {(host, digest): served.have.get(digest, 0) for digest in self._files[host]}

    def _addresses(self, host: str) -> list[tuple[str, str, int]]:
        known = next(other for other in self.cluster.hosts if other.name == host)
        return [(host, address, self._ports[host]) for address in self.cluster.addresses(known)]

    def _tidy(self) -> None:
        """Remove the files on hosts whose engine has them. Earlier, another host may still read them."""
        for host, files in self._files.items():
            if not self.pushed.hosts[host].error:
                with contextlib.suppress(MusterError):
                    channel = self.cluster.channels[host]
                    channel.ask(IMAGE_FORGET, digests=list(files), seconds=ANSWER_SECONDS)

    # -- from here --

    def _feed(self) -> None:
        """Send each file, lowest layer first, to a first host; then files that no other host could supply."""
        for layer in filter(None, map(self.archive.layer, self.image.layers)):
            needing = [host for host, files in self._files.items() if layer.digest in files]
            hosts = by_what_is_there({host: self._have[host, layer.digest] for host in needing})
            if hosts:
                self._spread(layer, hosts)
                self._give(hosts[0], layer)
        while stuck := self._stuck.get():
            self._give(*stuck)

    def _spread(self, layer: Layer, hosts: list[str]) -> None:
        """Let every host but the first get the file from the hosts above it in the tree, beginning now."""
        for host, chain in ancestors(hosts).items():
            sources = [source for giver in chain for source in self._addresses(giver)]
            channel = self.cluster.channels[host]
            channel.post(IMAGE_PULL, digest=layer.digest, bytes=layer.size, sources=sources)

    def _give(self, host: str, layer: Layer) -> None:
        """Send a file to a host, and report to the other thread how that went."""
        channel = self.cluster.channels[host]
        try:
            self._send(host, layer)
        except (MusterError, OSError) as error:
            channel.report(Fed(layer.digest, error.reason if isinstance(error, MusterError) else str(error)))
        else:
            channel.report(ImageGot(layer.digest))

    def _send(self, host: str, layer: Layer) -> None:
        channel, offset = self.cluster.channels[host], self._have[host, layer.digest]
        under_way: deque[Future[Nothing]] = deque()
        with self.archive.path(layer).open("rb") as file:
            file.seek(offset)
            while piece := file.read(PIECE):
                under_way.append(channel.post(IMAGE_TAKE, piece, digest=layer.digest, offset=offset))
                offset += len(piece)
                self.pushed.sent += len(piece)
                if len(under_way) == PIECES_AT_ONCE:
                    channel.wait(under_way.popleft(), ANSWER_SECONDS)
                channel.report(ImageHave(layer.digest, offset))
        for future in under_way:
            channel.wait(future, ANSWER_SECONDS)
        channel.ask(IMAGE_COMPLETE, digest=layer.digest, seconds=ANSWER_SECONDS)

    # -- what hosts say --

    def _watch(self) -> None:
        heard = time.monotonic()
        while self._waiting or self._loading:
            silence = LOAD_SECONDS if self._loading else SILENCE_SECONDS
            try:
                event = self.cluster.events.get(timeout=1.0)
            except Empty:
                self._cut_off_the_silent()
                if time.monotonic() - heard > silence:
                    for host in [*self._waiting, *self._loading]:
                        self._lose(host, f"nothing arrived for {silence:.0f} s")
                continue
            heard = time.monotonic()
            if event.host in {*self._waiting, *self._loading}:
                self._take(event.host, event.report)
            self.tell(*self._progress())

    def _cut_off_the_silent(self) -> None:
        """Give up frozen hosts: they receive nothing, and what is sent to them would keep others waiting."""
        for host in [*self._waiting, *self._loading]:
            channel = self.cluster.channels[host]
            if channel.silent_for() > FROZEN_SECONDS:
                self._lose(host, f"silent for {FROZEN_SECONDS:.0f} s: frozen, or cut off from the network")
                channel.give_up()
                channel.close()

    def _progress(self) -> tuple[int, int]:
        total = sum(layer.size for files in self._files.values() for layer in files.values())
        return sum(self._have.values()), total

    def _take(self, host: str, report: Report) -> None:
        """Handle the report of a host about its layers and its image. It may only report its own layers."""
        match report:
            case ImageHave(digest, have) if digest in self._files[host]:
                self._have[host, digest] = min(have, self._files[host][digest].size)
            case ImageGot(digest) if digest in self._files[host]:
                self._got(host, digest)
            case ImageStuck(digest, have) if digest in self._files[host]:
                # No peer can supply it: the driver sends it.
                self._have[host, digest] = min(have, self._files[host][digest].size)
                self._stuck.put((host, self._files[host][digest]))
            case Fed(error=error):
                self._lose(host, error)
            case ImageLoaded():
                self._loaded(host, report)
            case Lost(reason):
                nonsense = reason.kind == "host.nonsense"
                gone = "the SSH connection to it is gone; what has arrived there is kept: push again"
                self._lose(host, reason.reason if nonsense else gone)
            case _:
                self._lose(host, "it sent a report that has no place in a push")

    def _got(self, host: str, digest: str) -> None:
        self._have[host, digest] = self._files[host][digest].size
        self._waiting.get(host, set()).discard(digest)
        if host in self._waiting and not self._waiting[host]:
            self._load(host)

    def _loaded(self, host: str, report: ImageLoaded) -> None:
        self._loading.discard(host)
        self._waiting.pop(host, None)
        if report.error:
            self.pushed.hosts[host].error = report.error
        elif not _same(self.image, report):
            self.pushed.hosts[host].error = f"its engine made another image of it: {report.id}"

    def _lose(self, host: str, reason: str) -> None:
        self._waiting.pop(host, None)
        self._loading.discard(host)
        self.pushed.hosts[host].error = reason

    def _load(self, host: str) -> None:
        """All layers are on the host: let its engine load the image."""
        del self._waiting[host]
        self._loading.add(host)
        names = {diff_id: f"{diff_id.removeprefix('sha256:')}/layer.tar" for diff_id in self.image.layers}
        request: dict[str, Any] = {
            "name": self.image.name,
            "places": [names[diff_id] for diff_id in self.image.layers],
            "layers": [[names[layer.diff_id], layer.digest] for layer in self._files[host].values()],
        }
        self.cluster.channels[host].post(IMAGE_LOAD, self.configuration, **request)
