"""Brings an image to every host without a registry; layers go through a tree of hosts (core/content)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ...core.connect.cluster import Cluster
from ...core.connect.fanout import ask_every
from ...core.connect.reports import Report
from ...core.connect.requests import Nothing, Request
from ...core.content.messages import BLOB_FORGET
from ...core.content.push_result import PushResult
from ...core.content.transfer_state import ANSWER_SECONDS, LocalFile, Transfer, serve
from ...core.content.tree_transfer import OnProgress, Transfers
from ...core.decode import AtMost, lazy_dataclass
from ...core.errors import MusterError, UnfitError
from ...core.hosts.bounds import Count, DiffId, Name, Text
from ...core.text.text import count
from .archive import Layer, SavedImage, compressed
from .engine import Image, LocalEngine


@dataclass(frozen=True)
class PresentImage:
    """The image that a host has under a name, if any, and how many layers of the wanted image it has."""

    id: Name
    created: Name
    layers: Annotated[tuple[DiffId, ...], AtMost(1024)]
    common: Count


@lazy_dataclass(frozen=True)
class ImageLoaded(Report, event="image-loaded"):
    """The engine of a host has an image, or why it does not."""

    id: Name = ""
    created: Name = ""
    layers: Annotated[tuple[DiffId, ...], AtMost(1024)] = ()
    error: Text = ""


IMAGE = Request("image", PresentImage)
IMAGE_LOAD = Request("image_load", Nothing)


LOAD_SECONDS = 900.0


@dataclass
class ImagePushOutcome:
    """The outcome on a host. `layers` and `size` (compressed bytes) are of those that it lacked."""

    layers: int = 0
    size: int = 0
    had_it: bool = False
    error: str = ""

    def __str__(self) -> str:
        if self.had_it:
            return "has it already"
        return f"loaded; {count(self.layers, 'layer')} transferred, {self.size / 1e6:.1f} MB"


ImagePushResult = PushResult[ImagePushOutcome]


def survey(
    cluster: Cluster, image: Image, failed: dict[str, MusterError]
) -> dict[str, tuple[str, ...] | None]:
    """The layers that each host lacks (diff IDs); None if it has the image.

    `failed`: hosts that were not reached; those that do not answer are added. `UnfitError` if none is left.
    """
    arguments = {"name": image.name, "layers": list(image.layers)}
    answers = ask_every(cluster.channels, IMAGE, ANSWER_SECONDS, lambda host: arguments)
    failed |= answers.errors
    if not answers.results:
        raise UnfitError(failed.items())
    return {
        host: None if _same(image, held) else image.layers[held.common :]
        for host, held in answers.results.items()
    }


def _same(image: Image, answer: PresentImage | ImageLoaded) -> bool:
    """Whether a host has the image. Engines with containerd's store give it another id."""
    return answer.id == image.id or (answer.created == image.created and answer.layers == image.layers)


def prepare(
    engine: LocalEngine,
    image: Image,
    lacking: Mapping[str, tuple[str, ...] | None],
    folder: Path,
    progress: OnProgress = lambda done, total: None,
) -> SavedImage:
    """Compress every layer that a host lacks, on the disk of a folder.

    `progress`: gets the number of bytes of the image so far, and of all.
    """
    if all(diff_ids is None for diff_ids in lacking.values()):
        return SavedImage()
    wanted = {diff_id for diff_ids in lacking.values() for diff_id in diff_ids or ()}
    return compressed(_counted(engine.save(image), image.size, progress), wanted, folder)


def _counted(pieces: Iterable[bytes], total: int, progress: OnProgress) -> Iterator[bytes]:
    """The pieces of an image, as an engine saves it: a little more than the size of the image."""
    done = 0
    for piece in pieces:
        yield piece
        done = min(total, done + len(piece))
        progress(done, total)


class ImageTransfer:
    """The push of an image. A host that fails does not keep it from the others."""

    def __init__(self, cluster: Cluster, image: Image, saved: SavedImage, progress: OnProgress) -> None:
        self._cluster, self._image, self._saved, self._progress = cluster, image, saved, progress
        self._layers: dict[str, list[Layer]] = {}
        """The layers that each host lacks."""
        self._missing: dict[str, set[str]] = {}
        """The digests of layers that have not arrived yet."""

    def push(
        self, lacking: Mapping[str, tuple[str, ...] | None], failed: Mapping[str, MusterError]
    ) -> ImagePushResult:
        """Bring every host the layers that it lacks, and let its engine load the image.

        `failed`: the hosts that dropped out before.
        """
        hosts = {host: ImagePushOutcome(error=error.reason) for host, error in failed.items()}
        # The lowest layer first. An image may have a layer twice: BuildKit makes the same one for every step
        # without changes.
        saved = self._saved.layers
        layers = {diff_id: saved[diff_id] for diff_id in self._image.layers if diff_id in saved}
        for host, diff_ids in lacking.items():
            own = [layers[diff_id] for diff_id in dict.fromkeys(diff_ids or ())]
            hosts[host] = ImagePushOutcome(len(own), sum(layer.size for layer in own), diff_ids is None)
            if diff_ids is not None:
                self._layers[host] = own
        files = [LocalFile(layer.digest, layer.size, layer.path) for layer in layers.values()]
        needed = {host: [layer.digest for layer in own] for host, own in self._layers.items()}
        served = serve(self._cluster, "images", needed)
        for host, refusal in served.errors.items():
            hosts[host].error = refusal.reason
            del needed[host]
        self._missing = {host: {*digests} for host, digests in needed.items()}
        self._transfers = transfers = Transfers(self._cluster, served.results, self._progress)
        transfers.arrived, transfers.take_other = self._arrived, self._take_other
        for host in [host for host, missing in self._missing.items() if not missing]:
            self._load(host)
        transfers.bring_files(files, needed)
        for host, error in transfers.lost.items():
            hosts[host].error = error
        self._tidy(hosts)
        in_order = {host.name: hosts[host.name] for host in self._cluster.hosts}
        what = f"{self._image.name} {self._image.id.removeprefix('sha256:')[:12]}"
        return ImagePushResult(what, in_order, transfers.sent, transfers.notes)

    def _arrived(self, host: str, transfer: Transfer) -> None:
        """Let the engine of a host load the image as soon as the host has all layers."""
        self._missing[host].discard(transfer.digest)
        if not self._missing[host]:
            self._load(host)

    def _load(self, host: str) -> None:
        self._transfers.working[host] = LOAD_SECONDS
        names = {diff_id: f"{diff_id.removeprefix('sha256:')}/layer.tar" for diff_id in self._image.layers}
        request: dict[str, Any] = {
            "name": self._image.name,
            "places": [names[diff_id] for diff_id in self._image.layers],
            "layers": [[names[layer.diff_id], layer.digest] for layer in self._layers[host]],
        }
        self._cluster.channels[host].post(IMAGE_LOAD, self._saved.configuration, **request)

    def _take_other(self, host: str, report: Report) -> bool:
        if not isinstance(report, ImageLoaded) or host not in self._transfers.working:
            return False
        del self._transfers.working[host]
        if report.error:
            self._transfers.lose(host, report.error)
        elif not _same(self._image, report):
            self._transfers.lose(host, f"its engine made another image of it: {report.id}")
        return True

    def _tidy(self, hosts: Mapping[str, ImagePushOutcome]) -> None:
        """Remove the files on hosts whose engine has loaded them. Before, another host may read them."""
        for host, layers in self._layers.items():
            if not hosts[host].error:
                with contextlib.suppress(MusterError):
                    channel = self._cluster.channels[host]
                    digests = [layer.digest for layer in layers]
                    channel.ask(BLOB_FORGET, digests=digests, seconds=ANSWER_SECONDS)
