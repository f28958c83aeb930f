"""The agent's part in `fab image.push`: finds the image, receives and serves its layers, loads it."""

from __future__ import annotations

import io
import json
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ...common.frames import Frame
from .blobs import CHUNK, Blobs, Server, Source, Wanted, pull
from .engine import find, layers_in_common, load, needs_every_layer

TELL_SECONDS = 0.25


class Images:
    """Answers requests about images. Long work runs in a thread, and ends with an event."""

    def __init__(self, root: Path, send: Callable[[Frame], None]) -> None:
        self.blobs, self._send = Blobs(root), send
        self._word = ""

    def do_image(self, request: Frame, payload: bytes) -> Frame:
        """The image of a name, how many of these layers are here, and whether they may be left out."""
        common = 0 if needs_every_layer() else layers_in_common(request["layers"])
        return {**self._known(request["name"]), "common": common}

    def do_image_serve(self, request: Frame, payload: bytes) -> Frame:
        """Serve layers to other hosts of this push; answers how much of each file is here already."""
        self._word = request["word"]
        server = Server(self.blobs, request["host"], self._word)
        have = {digest: self.blobs.size(digest) for digest in request["digests"]}
        return {"port": server.port, "have": have}

    def do_image_take(self, request: Frame, payload: bytes) -> Frame:
        """Take a piece of a file from the driver."""
        self.blobs.append(request["digest"], request["offset"], payload)
        return {}

    def do_image_complete(self, request: Frame, payload: bytes) -> Frame:
        """Accept a file whose pieces have all arrived."""
        self.blobs.complete(request["digest"])
        return {}

    def do_image_pull(self, request: Frame, payload: bytes) -> Frame:
        """Fetch a file from other hosts."""
        threading.Thread(target=self._pull, args=(request,), daemon=True).start()
        return {}

    def do_image_forget(self, request: Frame, payload: bytes) -> Frame:
        """Remove files that are loaded."""
        self.blobs.forget(request["digests"])
        return {}

    def do_image_load(self, request: Frame, payload: bytes) -> Frame:
        """Hand the image to the engine; the layers that it has are left out."""
        threading.Thread(target=self._load, args=(request, payload), daemon=True).start()
        return {}

    def _pull(self, request: Frame) -> None:
        digest, last_report = request["digest"], [0.0]

        def tell(have: int) -> None:
            if time.monotonic() - last_report[0] > TELL_SECONDS:
                last_report[0] = time.monotonic()
                self._send({"event": "image-have", "digest": digest, "have": have})

        try:
            sources = [Source(*source) for source in request["sources"]]
            pull(self.blobs, Wanted(digest, request["bytes"], self._word), sources, tell)
        except (OSError, ValueError) as error:
            have = self.blobs.size(digest)
            self._send({"event": "image-stuck", "digest": digest, "have": have, "text": str(error)})
        else:
            self._send({"event": "image-got", "digest": digest})

    def _load(self, request: Frame, payload: bytes) -> None:
        try:
            load(self._archive(request, payload))
            loaded = self._known(request["name"])
        except (OSError, ValueError) as error:
            self._send({"event": "image-loaded", "error": str(error)})
        else:
            self._send({"event": "image-loaded", **loaded})

    def _known(self, name: str) -> Frame:
        image = find(name)
        if image is None:
            return {"id": "", "created": "", "layers": []}
        return {"id": image["Id"], "created": image["Created"], "layers": image["RootFS"].get("Layers") or []}

    def _archive(self, request: Frame, configuration: bytes) -> Iterator[bytes]:
        """What `docker save` writes, with compressed layers; the engine checks each again."""
        manifest = [{"Config": "config.json", "RepoTags": [request["name"]], "Layers": request["places"]}]
        yield from _member("config.json", io.BytesIO(configuration), len(configuration))
        text = json.dumps(manifest).encode()
        yield from _member("manifest.json", io.BytesIO(text), len(text))
        for place, digest in request["layers"]:
            path = self.blobs.path(digest)
            with open(path, "rb") as file:
                yield from _member(place, file, path.stat().st_size)
        yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, content: io.BufferedIOBase | io.BufferedReader, size: int) -> Iterator[bytes]:
    entry = tarfile.TarInfo(name)
    entry.size = size
    yield entry.tobuf(tarfile.GNU_FORMAT)
    while some := content.read(CHUNK):
        yield some
    if size % tarfile.BLOCKSIZE:
        yield bytes(tarfile.BLOCKSIZE - size % tarfile.BLOCKSIZE)
