"""The requests about files that go to hosts: take them from the driver, serve them, fetch them from hosts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from ...common.frames import Frame
from ...common.os_errors import explain
from .blobs import Blobs
from .listening import addresses_for
from .peers import Server, Source, Wanted, pull
from .tls import Identity, identity

TELL_SECONDS = 0.25
WORKERS = 3


class Transfers:
    """The files of one folder. They arrive in threads, and an event tells of each how that ended."""

    def __init__(self, root: Path, send: Callable[[Frame], None]) -> None:
        self.blobs, self._send = Blobs(root), send
        self._identity: Identity | None = None
        self._work: SimpleQueue[Callable[[], None]] | None = None

    def serve(self, request: Frame, payload: bytes) -> Frame:
        """Serve files to other hosts; answers how much of each file is here already."""
        have = {digest: self.blobs.found(digest) for digest in request["digests"]}
        return {**self._serve(request), "have": have}

    def _serve(self, request: Frame) -> Frame:
        """Where other hosts of this push get files."""
        self._identity = identity(request["identity"])
        addresses = addresses_for(request["addresses"], request["peers"])
        return {"port": Server(self.blobs, self._identity, addresses).port, "addresses": addresses}

    def take(self, request: Frame, payload: bytes) -> Frame:
        """Take a piece of a file from the driver."""
        self.blobs.append(request["digest"], request["offset"], payload)
        return {}

    def complete(self, request: Frame, payload: bytes) -> Frame:
        """Accept a file whose pieces have all come."""
        self._later(request, lambda: self.blobs.complete(request["digest"]))
        return {}

    def pull(self, request: Frame, payload: bytes) -> Frame:
        """Fetch a file from other hosts."""
        self._later(request, lambda: self._pull(request))
        return {}

    def forget(self, request: Frame, payload: bytes) -> Frame:
        """Remove files that are not needed any more."""
        self.blobs.forget(request["digests"])
        return {}

    def accept(self, request: Frame) -> None:
        """Put the content of a file where it belongs; ValueError or LookupError if it is wrong."""

    def _later(self, request: Frame, get: Callable[[], None]) -> None:
        """Get a file in one of the threads, and report how that ended."""
        if self._work is None:
            self._work = SimpleQueue()
            for _ in range(WORKERS):
                threading.Thread(target=_work_off, args=(self._work,), daemon=True).start()
        self._work.put(lambda: self._get(request, get))

    def _get(self, request: Frame, get: Callable[[], None]) -> None:
        digest = request["digest"]
        try:
            get()
        except (OSError, ValueError) as error:
            have = self.blobs.size(digest)
            self._send({"event": "file-stuck", "digest": digest, "have": have, "text": explain(error)})
            return
        try:
            self.accept(request)
        except (OSError, ValueError, LookupError) as error:
            wrong = not isinstance(error, OSError)
            self._send({"event": "file-got", "digest": digest, "error": explain(error), "wrong": wrong})
        else:
            self._send({"event": "file-got", "digest": digest})

    def _pull(self, request: Frame) -> None:
        digest, told = request["digest"], time.monotonic()

        def tell(have: int) -> None:
            nonlocal told
            if time.monotonic() - told > TELL_SECONDS:
                told = time.monotonic()
                self._send({"event": "file-have", "digest": digest, "have": have})

        if self._identity is None:
            raise ValueError("files are fetched from other hosts only after `serve`")
        sources = [Source(*source) for source in request["sources"]]
        pull(self.blobs, self._identity, Wanted(digest, request["bytes"]), sources, tell)


def _work_off(work: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        work.get()()
