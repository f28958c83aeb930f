"""The agent's part in `fab image.push`: inspects images, and loads one from the layers that have arrived."""

from __future__ import annotations

import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from ....core.agent.transfer.blobs import CHUNK, Blobs
from ....core.wire.frames import Frame
from .engine import find, layers_in_common, load, needs_every_layer


class ImageLoader:
    """Answers requests about images. Long work runs in a thread, and ends with an event."""

    def __init__(self, root: Path, send: Callable[[Frame], None]) -> None:
        self._layers, self._send = Blobs(root), send

    def do_image(self, request: Frame, payload: bytes) -> Frame:
        """The image with this name, and how many of these layers may be left out."""
        common = 0 if needs_every_layer() else layers_in_common(request["layers"])
        return {**self._described(request["name"]), "common": common}

    def do_image_load(self, request: Frame, payload: bytes) -> Frame:
        """Load the image into the engine, without the layers that it has."""
        threading.Thread(target=self._load, args=(request, payload), daemon=True).start()
        return {}

    def _load(self, request: Frame, payload: bytes) -> None:
        try:
            load(self._archive(request, payload))
            loaded = self._described(request["name"])
        except (OSError, ValueError) as error:
            self._send({"event": "image-loaded", "error": str(error)})
        else:
            self._send({"event": "image-loaded", **loaded})

    def _described(self, name: str) -> Frame:
        image = find(name)
        if image is None:
            return {"id": "", "created": "", "layers": []}
        return {"id": image["Id"], "created": image["Created"], "layers": image["RootFS"].get("Layers") or []}

    def _archive(self, request: Frame, configuration: bytes) -> Iterator[bytes]:
        """An archive as `docker save` writes it, with compressed layers; the engine checks each again."""
        manifest = [{"Config": "config.json", "RepoTags": [request["name"]], "Layers": request["places"]}]
        yield from _member("config.json", io.BytesIO(configuration), len(configuration))
        text = json.dumps(manifest).encode()
        yield from _member("manifest.json", io.BytesIO(text), len(text))
        for name, digest in request["layers"]:
            path = self._layers.path(digest)
            with open(path, "rb") as file:
                yield from _member(name, file, path.stat().st_size)
        yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, content: io.BufferedIOBase | io.BufferedReader, size: int) -> Iterator[bytes]:
    entry = tarfile.TarInfo(name)
    entry.size = size
    yield entry.tobuf(tarfile.GNU_FORMAT)
    while part := content.read(CHUNK):
        yield part
    if size % tarfile.BLOCKSIZE:
        yield bytes(tarfile.BLOCKSIZE - size % tarfile.BLOCKSIZE)
