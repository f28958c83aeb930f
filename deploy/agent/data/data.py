"""The agent's part in `fab data`: takes in chunks and passes them on, and keeps the data sets of this host.

Chunks travel in bundles of at most 4 MiB, which go from host to host as the layers of an image do
(agent/transfer/peers.py). What takes long ends early when the driver is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from ...common.data.manifest import CHUNK, Chunks, unpack
from ...common.data.scan import Reader, scan
from ...common.data.sets import Sets, Version, intact, remove_tree
from ...common.data.verify import damage
from ...common.files import newest_in
from ...common.frames import Frame
from ...common.os_errors import explain
from ..transfer.transfers import Transfers
from .arrival import Arrival, place_of

TELL_SECONDS = 0.5
OLD_SECONDS = 7 * 86400.0  # bundles and files of pushes that were never continued
MOST_BUNDLES = 256  # of earlier pushes, whose sizes are reported
STDIN = 0


class Data(Transfers):
    """Answers requests about data sets. Bundles are received in threads, which report each with an event."""

    def __init__(self, root: Path, jobs: Path, send: Callable[[Frame], None]) -> None:
        super().__init__(root / ".chunks", send)
        self.root, self.sets = root, Sets(root, jobs)
        self._arrival: Arrival | None = None
        self._held = contextlib.ExitStack()
        self._source, self._told = "", 0.0
        self._reading: Reader | None = None

    def close(self) -> None:
        """Give up the locks."""
        self._held.close()

    do_data_take, do_data_complete = Transfers.take, Transfers.complete
    do_data_pull, do_data_forget = Transfers.pull, Transfers.forget

    # -- a push --

    def do_data_serve(self, request: Frame, payload: bytes) -> Frame:
        """Serve bundles to other hosts of this push; answers what bundles of an earlier push are here."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = place_of(self.root)
        self._sweep()
        names = sorted(os.listdir(self.blobs.root)) if self.blobs.root.is_dir() else []
        digests = [name.partition(".")[0] for name in names[:MOST_BUNDLES]]
        return {
            **self._serve(request),
            "place": place,
            "have": {one: self.blobs.found(one) for one in digests},
        }

    def do_data_scan(self, request: Frame, payload: bytes) -> Frame:
        """Take a folder of this host as the source; the manifest becomes a bundle."""
        self._source = os.path.realpath(os.path.expanduser(request["path"]))
        return self._scanned()

    def do_data_fetch(self, request: Frame, payload: bytes) -> Frame:
        """Fetch a file from a web server and take it as the source."""
        from .fetch import fetch  # noqa: PLC0415  # urllib takes longer to load than all the rest

        place, most = self.root / ".fetched", request["most"]
        self._source = str(fetch(request["url"], place, most, self._tell, request["sha256"]))
        return self._scanned()

    def _scanned(self) -> Frame:
        return self._kept_as_bundle(scan(self._source, self._tell).packed())

    def _kept_as_bundle(self, content: bytes) -> Frame:
        digest = hashlib.sha256(content).hexdigest()
        if not self.blobs.has(digest):
            self.blobs.append(digest, self.blobs.size(digest), content[self.blobs.size(digest) :])
            self.blobs.complete(digest)
        return {"digest": digest, "bytes": len(content)}

    def do_data_begin(self, request: Frame, payload: bytes) -> Frame:
        """Begin to make a version, whose manifest is here as a bundle; answers which chunks are lacking."""
        self._held.enter_context(self.sets.locked(request["name"]))
        manifest = unpack(self.blobs.path(request["manifest"]).read_bytes())
        version = Version(request["name"], manifest.digest, request["shard"], request["of"])
        self._arrival = Arrival(self.sets, version, manifest, self._source)
        return self._arrival.begin(self._require_driver)

    def do_data_bundle(self, request: Frame, payload: bytes) -> Frame:
        """Make a bundle of chunks that are here, for other hosts to fetch."""
        return self._kept_as_bundle(b"".join(map(self._arrived.read, request["chunks"])))

    def do_data_publish(self, request: Frame, payload: bytes) -> Frame:
        """Put the version into place, and end the push here."""
        self._arrived.publish()
        if os.path.dirname(self._source) == str(self.root / ".fetched"):
            shutil.rmtree(self._source, ignore_errors=True)
        self._held.close()
        return {}

    @property
    def _arrived(self) -> Arrival:
        if self._arrival is None:
            raise ValueError("no push has begun here")
        return self._arrival

    def accept(self, request: Frame) -> None:
        """Put the chunks of a bundle into the files of the version that arrives."""
        if request["chunks"]:
            self._arrived.place(request["chunks"], self.blobs.path(request["digest"]).read_bytes())

    def _sweep(self) -> None:
        """Remove what pushes of long ago have left."""
        old = time.time() - OLD_SECONDS
        for place in (self.blobs.root, self.root / ".fetched"):
            for path in place.iterdir() if place.is_dir() else ():
                with contextlib.suppress(OSError):
                    if path.is_dir() and newest_in(path) < old:
                        remove_tree(path)
                    elif path.is_file() and path.stat().st_mtime < old:
                        path.unlink()
        drafts = self.root / ".drafts"
        for path in drafts.iterdir() if drafts.is_dir() else ():
            if newest_in(path) < old:
                with contextlib.suppress(OSError, ValueError), self.sets.locked(path.name.partition("@")[0]):
                    remove_tree(path)

    # -- sets that are here --

    def do_data_list(self, request: Frame, payload: bytes) -> Frame:
        """The sets of this host."""
        return {"place": place_of(self.root), "sets": [self._described(name) for name in self.sets.names()]}

    def _described(self, name: str) -> Frame:
        try:
            kept = self.sets.kept(name)
        except ValueError as error:
            return {"name": name, "error": explain(error)}
        files = [kept.manifest.files[index] for index in kept.wanted]
        part = {"shard": kept.version.shard, "of": kept.version.of, "digest": kept.version.digest}
        problem = "" if intact(kept) else "files of it were changed or removed there; push it again"
        size = sum(file.size for file in files)
        return {"name": name, "files": len(files), "bytes": size, "error": problem, **part}

    def do_data_verify(self, request: Frame, payload: bytes) -> Frame:
        """Read every byte of a set; answers what is damaged."""
        kept = self.sets.kept(request["name"])
        return {"digest": kept.version.digest, "damaged": damage(kept, self._require_driver)}

    def do_data_remove(self, request: Frame, payload: bytes) -> Frame:
        """Remove a set; answers its bytes."""
        with self.sets.locked(request["name"]):
            return {"freed": self.sets.remove(request["name"])}

    def do_data_open(self, request: Frame, payload: bytes) -> Frame:
        """Begin to give a set to the driver; its manifest becomes a bundle."""
        kept = self.sets.kept(request["name"])
        self._reading = Reader(kept.folder, kept.manifest, Chunks(kept.manifest), kept.wanted)
        return self._kept_as_bundle(kept.manifest.packed())

    def do_data_part(self, request: Frame, payload: bytes) -> Frame:
        """A part of a bundle that is here."""
        with open(self.blobs.path(request["digest"]), "rb") as file:
            file.seek(request["start"])
            return {"payload": file.read(CHUNK)}

    def do_data_read(self, request: Frame, payload: bytes) -> Frame:
        """The bytes of some chunks of that set."""
        if self._reading is None:
            raise ValueError("no set is open")
        return {"payload": b"".join(self._reading.read(number) for number in request["chunks"])}

    # -- the driver --

    def _tell(self, done: int, total: int) -> None:
        """Report how much is read or fetched, now and then."""
        if time.monotonic() - self._told > TELL_SECONDS:
            self._require_driver()
            self._told = time.monotonic()
            self._send({"event": "data-read", "done": done, "total": total})

    @staticmethod
    def _require_driver() -> None:
        """End this agent if its lifeline is closed: the thread that would notice is at work here."""
        poll = select.poll()
        poll.register(STDIN, 0)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0)):
            raise SystemExit(1)
