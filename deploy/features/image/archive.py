"""Splits an image from `docker save` into its configuration and its layers as compressed files."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, cast

from ...core.errors import MusterError
from ...core.wire.durable import keep_if_intact, read_sealed, write_sealed
from ...core.wire.files import digest as digest_of

LEVEL = 1  # zlib's fastest: three times as fast as its default, for a tenth more bytes
CHUNK = 1 << 20
MOST_JSON = 16 << 20  # bytes of an image's configuration: every label, variable and command
LOCK = ".lock"


@dataclass(frozen=True)
class Layer:
    """A layer: the digest of its content, and the digest and size of the compressed file that is sent."""

    diff_id: str
    digest: str
    size: int
    """Bytes of the compressed file."""


class _Stream:
    """Pieces of bytes as a stream for `tarfile`, which reads it from its begin to its end."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = filter(None, pieces)

    def read(self, size: int, /) -> bytes:
        return next(self._pieces, b"")


class Archive:
    """Compressed layers in a folder of this machine. The next push reuses the files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._intact: dict[Layer, int] = {}
        """The layers whose files this push has verified, and the modification time of each file."""

    def path(self, layer: Layer) -> Path:
        """The compressed file of a layer."""
        return self.folder / f"{_plain(layer.diff_id)}.gz"

    def layer(self, diff_id: str) -> Layer | None:
        """A layer that is compressed already; else None."""
        try:
            layer = Layer(**read_sealed(self.folder / f"{_plain(diff_id)}.json"))
        except TypeError:
            return None
        path = self.path(layer)
        if path.exists() and self._intact.get(layer) == path.stat().st_mtime_ns:
            return layer
        if not keep_if_intact(path, layer.digest):
            return None
        self._intact[layer] = path.stat().st_mtime_ns
        return layer

    def configuration(self, image_id: str) -> bytes | None:
        """The configuration of an image of an earlier push; else None."""
        kept = read_sealed(self.folder / f"{_plain(image_id)}.config")
        return kept.encode(errors="surrogateescape") if isinstance(kept, str) else None

    def take(self, saved: Iterable[bytes], image_id: str, wanted: Iterable[str]) -> bytes:
        """Compress the wanted layers of an image from `docker save`; returns the image's configuration."""
        self.folder.mkdir(parents=True, exist_ok=True)
        missing = {diff_id for diff_id in wanted if self.layer(diff_id) is None}
        small: dict[str, bytes] = {}
        stream = cast("IO[bytes]", _Stream(saved))
        with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as members:
            for member in members:
                if content := members.extractfile(member) if member.isfile() else None:
                    # Newer engines name the configuration by its digest, like a layer.
                    if member.size < 1 << 16 or (member.size <= MOST_JSON and _is_json(content)):
                        small[member.name] = content.read()
                        self._keep(io.BytesIO(small[member.name]), missing)
                    else:
                        self._keep(content, missing)
        name = json.loads(small["manifest.json"])[0]["Config"]
        if (configuration := small.get(name)) is None:
            raise MusterError(
                f"the container engine saved no configuration of the image ({name}), or one of more than "
                f"{MOST_JSON >> 20} MiB; build it again with shorter labels and variables"
            )
        if absent := [diff_id for diff_id in missing if self.layer(diff_id) is None]:
            raise MusterError(f"the container engine did not save the layer {absent[0]}")
        text = configuration.decode(errors="surrogateescape")
        write_sealed(self.folder / f"{_plain(image_id)}.config", text)
        return configuration

    def _keep(self, content: IO[bytes], missing: set[str]) -> None:
        """Compress a layer if it is wanted. Its digest, which identifies it, is only known at its end."""
        with tempfile.TemporaryFile(dir=self.folder) as plain:
            diff_id = "sha256:" + _copy(_inflated(content), plain)
            if diff_id not in missing:
                return
            plain.seek(0)
            path = self.folder / f"{_plain(diff_id)}.gz"
            with path.open("wb") as file, gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as packed:
                shutil.copyfileobj(plain, packed, CHUNK)
        layer = Layer(diff_id, digest_of(path), path.stat().st_size)
        write_sealed(self.folder / f"{_plain(diff_id)}.json", asdict(layer))

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Within this context, the sweep of another push removes nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield

    def sweep(self, keep: Iterable[str]) -> None:
        """Remove all layers and images except those to keep; nothing while another push uses the archive."""
        names = {_plain(name) for name in keep}
        with contextlib.suppress(BlockingIOError), (self.folder / LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in self.folder.iterdir():
                if path.is_file() and path.name != LOCK and path.stem not in names:
                    path.unlink()


def _plain(digest: str) -> str:
    return digest.removeprefix("sha256:")


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
