"""Splits an image from `docker save` into its configuration and its layers as compressed files."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, cast

from ...core.errors import MusterError
from ...core.wire.files import digest as digest_of

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
