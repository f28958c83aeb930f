"""Brings an image to every host without a registry; layers go through a tree of hosts (core/content).

`docker save` gives the image, which is split into its configuration and its layers as compressed files.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Annotated, Any, cast

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
from ...core.wire.files import digest as digest_of
from .engine import Image, LocalEngine

LEVEL = 1  # zlib's fastest: three times as fast as its default, for a tenth more bytes
CHUNK = 1 << 20
MOST_JSON = 16 << 20  # bytes of an image's configuration: every label, variable and command


@dataclass(frozen=True)
class Layer:
    """A compressed layer: the digest of its content, and the digest and size of the file that is sent."""

    diff_id: str
    digest: str
    size: int
    file: IO[bytes]
    """The file has no name, so the end of this process removes it."""

    @property
    def path(self) -> Path:
        """Where this process can open the file."""
        return Path(f"/proc/self/fd/{self.file.fileno()}")


@dataclass(frozen=True)
class SavedImage:
    """The configuration of an image, and the compressed layers that are wanted, by their diff IDs."""

    configuration: bytes = b""
    layers: Mapping[str, Layer] = field(default_factory=dict)


class _Stream:
    """Pieces of bytes as a stream for `tarfile`, which reads it from its begin to its end."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = filter(None, pieces)

    def read(self, size: int, /) -> bytes:
        return next(self._pieces, b"")


def compressed(saved: Iterable[bytes], wanted: Collection[str], folder: Path) -> SavedImage:
    """The wanted layers of an image from `docker save`, compressed, in files on the disk of `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    layers: dict[str, Layer] = {}
    small: dict[str, bytes] = {}
    stream = cast("IO[bytes]", _Stream(saved))
    with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as members:
        for member in members:
            if content := members.extractfile(member) if member.isfile() else None:
                # Newer engines name the configuration by its digest, like a layer.
                if member.size < 1 << 16 or (member.size <= MOST_JSON and _is_json(content)):
                    small[member.name] = content.read()
                    content = io.BytesIO(small[member.name])
                if layer := _layer(content, wanted, folder):
                    layers[layer.diff_id] = layer
    name = json.loads(small["manifest.json"])[0]["Config"]
    if (configuration := small.get(name)) is None:
        raise MusterError(
            f"the container engine saved no configuration of the image ({name}), or one of more than "
            f"{MOST_JSON >> 20} MiB; build it again with shorter labels and variables"
        )
    if absent := [diff_id for diff_id in wanted if diff_id not in layers]:
        raise MusterError(f"the container engine did not save the layer {absent[0]}")
    return SavedImage(configuration, layers)


def _layer(content: IO[bytes], wanted: Collection[str], folder: Path) -> Layer | None:
    """A layer, compressed, if it is wanted. Its digest, which identifies it, is only known at its end."""
    with tempfile.TemporaryFile(dir=folder) as plain:
        diff_id = "sha256:" + _copy(_inflated(content), plain)
        if diff_id not in wanted:
            return None
        plain.seek(0)
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # its layer keeps it open
        # The same bytes each time: hosts keep what they got of an interrupted push.
        with gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as packed:
            shutil.copyfileobj(plain, packed, CHUNK)
    file.flush()
    layer = Layer(diff_id, "", file.tell(), file)
    return replace(layer, digest=digest_of(layer.path))


def _is_json(content: IO[bytes]) -> bool:
    return content.peek(1)[:1] in {b"{", b"["}  # type: ignore[attr-defined]  # a tar member is buffered


def _inflated(content: IO[bytes]) -> IO[bytes]:
    """The uncompressed bytes of a layer. Engines that use containerd's store save layers compressed."""
    peeked = io.BufferedReader(content, CHUNK)  # type: ignore[type-var]  # a tar member is a raw stream
    return gzip.GzipFile(fileobj=peeked) if peeked.peek(2)[:2] == b"\x1f\x8b" else peeked  # type: ignore[return-value]


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    """Copy a source to its end; returns the SHA-256 of its bytes."""
    digest = hashlib.sha256()
    while piece := source.read(CHUNK):
        digest.update(piece)
        target.write(piece)
    return digest.hexdigest()


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
