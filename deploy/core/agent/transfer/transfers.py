"""Requests that move large files: receive them from the driver, serve them, fetch them from other hosts."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from ...wire.folders import identity_of_folder
from ...wire.frames import Frame
from ...wire.os_errors import explain
from .blobs import Blobs
from .listening import addresses_for
from .peers import Peer, Server, WantedFile, pull
from .tls import Identity, identity

REPORT_SECONDS = 0.25
WORKERS = 3
OLD_SECONDS = 7 * 86400.0  # files of transfers that were never resumed
MOST_LEFT = 256  # files of earlier transfers, whose sizes are reported
FOLDERS = {"images": "images", "wheels": "wheels", "data": "data/.chunks"}
"""The folder of each kind of files, in the agent's folder."""


class HostTransfers:
    """Files that arrive in one folder. They arrive in threads, and an event reports how each ended."""

    def __init__(self, home: Path, send: Callable[[Frame], None]) -> None:
        self._home, self._send = home, send
        self._serving: tuple[Blobs, Identity] | None = None
        self._work: SimpleQueue[Callable[[], None]] | None = None
        self.accept: Callable[[Frame], None] = lambda request: None
        """Uses the content of a complete file; ValueError if the content is wrong."""

    def do_blob_serve(self, request: Frame, payload: bytes) -> Frame:
        """Serve files to other hosts of this push; answers how much of each file has arrived already.

        `digests`: the files that this host needs; null for all files of earlier transfers.
        """
        root = self._home / FOLDERS[request["folder"]]
        for folder in (root.parent, root):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        blobs, identity_ = Blobs(root), identity(request["identity"])
        digests = _left_in(root) if request["digests"] is None else request["digests"]
        have = {digest: blobs.intact_size(digest) for digest in digests}
        addresses = addresses_for(request["addresses"], request["peers"])
        self._serving = blobs, identity_
        port = Server(blobs, identity_, addresses).port
        return {
            "port": port,
            "addresses": addresses,
            "have": have,
            "place": identity_of_folder(root.parent / ".place"),
        }

    def _served(self) -> tuple[Blobs, Identity]:
        if self._serving is None:
            raise ValueError("files are transferred only after `blob_serve`")
        return self._serving

    @property
    def _blobs(self) -> Blobs:
        return self._served()[0]

    def do_blob_take(self, request: Frame, payload: bytes) -> Frame:
        """Take a piece of a file from the driver."""
        self._blobs.append(request["digest"], request["offset"], payload)
        return {}

    def do_blob_complete(self, request: Frame, payload: bytes) -> Frame:
        """Accept a file whose pieces have all come."""
        self._in_thread(request, lambda: self._blobs.complete(request["digest"]))
        return {}

    def do_blob_pull(self, request: Frame, payload: bytes) -> Frame:
        """Fetch a file from other hosts."""
        self._in_thread(request, lambda: self._pull(request))
        return {}

    def do_blob_forget(self, request: Frame, payload: bytes) -> Frame:
        """Remove files that are no longer needed."""
        self._blobs.forget(request["digests"])
        return {}

    def _in_thread(self, request: Frame, get: Callable[[], None]) -> None:
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
            have = self._blobs.size(digest)
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
        digest, reported = request["digest"], time.monotonic()

        def report(have: int) -> None:
            nonlocal reported
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                self._send({"event": "file-have", "digest": digest, "have": have})

        sources = [Peer(*source) for source in request["sources"]]
        pull(*self._served(), WantedFile(digest, request["bytes"]), sources, report)


def _work_off(work: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        work.get()()


def _left_in(root: Path) -> list[str]:
    """The digests of files of earlier transfers; old files are removed."""
    digests = set()
    for path in root.iterdir():
        if re.fullmatch(r"[0-9a-f]{64}(\.part)?", path.name):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > OLD_SECONDS:
                    path.unlink()
                else:
                    digests.add(path.stem)
    return sorted(digests)[:MOST_LEFT]
