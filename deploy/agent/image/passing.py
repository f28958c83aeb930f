"""An agent's part in the way of large files from host to host: takes them, serves them, fetches them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from ...common.frames import Frame
from .blobs import Blobs, Server, Source, Wanted, pull

TELL_SECONDS = 0.25


class Passing:
    """The files of one folder. Fetching runs in a thread, and ends with an event."""

    def __init__(self, root: Path, send: Callable[[Frame], None]) -> None:
        self.blobs, self._send = Blobs(root), send
        self._word = ""

    def serve(self, request: Frame, payload: bytes) -> Frame:
        """Serve files to other hosts; answers how much of each file is here already."""
        self._word = request["word"]
        server = Server(self.blobs, request["host"], self._word)
        have = {digest: self.blobs.size(digest) for digest in request["digests"]}
        return {"port": server.port, "have": have}

    def take(self, request: Frame, payload: bytes) -> Frame:
        """Take a piece of a file from the driver."""
        self.blobs.append(request["digest"], request["offset"], payload)
        return {}

    def complete(self, request: Frame, payload: bytes) -> Frame:
        """Accept a file whose pieces have all arrived."""
        self.blobs.complete(request["digest"])
        return {}

    def pull(self, request: Frame, payload: bytes) -> Frame:
        """Fetch a file from other hosts."""
        threading.Thread(target=self._pull, args=(request,), daemon=True).start()
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
