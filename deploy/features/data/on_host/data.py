"""The agent's part in `fab data`: keeps the data sets of this host, and receives chunks of new ones.

Chunks travel in bundles of at most 4 MiB, as files from host to host (core/agent/transfer/transfers.py). Long
work ends early when the driver is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import time
from collections.abc import Callable
from pathlib import Path

from ....core.agent.transfer.blobs import Blobs
from ....core.agent.transfer.transfers import OLD_SECONDS, HostTransfers
from ....core.wire.files import newest_in
from ....core.wire.folders import identity_of_folder
from ....core.wire.frames import Frame
from ....core.wire.os_errors import explain
from ..wire.manifest import CHUNK, Chunks, unpack
from ..wire.scan import Reader, scan
from ..wire.sets import Sets, Version, intact, remove_tree
from ..wire.verify import damage
from .arrival import Arrival

REPORT_SECONDS = 0.5
STDIN = 0


class Data:
    """Answers requests about data sets. `transfers`: brings the bundles of a push."""

    def __init__(
        self, root: Path, jobs: Path, send: Callable[[Frame], None], transfers: HostTransfers
    ) -> None:
        self.root, self.sets, self._send, self._transfers = root, Sets(root, jobs), send, transfers
        self._bundles = Blobs(root / ".chunks")
        self._arrival: Arrival | None = None
        self._held = contextlib.ExitStack()
        self._source, self._reported = "", 0.0
        self._reading: Reader | None = None
        self._opened: list[str] = []
        """Manifests that became bundles for the driver alone."""

    def close(self) -> None:
        """Give up the locks."""
        self._bundles.forget(self._opened)
        self._held.close()

    # -- a push --

    def do_data_scan(self, request: Frame, payload: bytes) -> Frame:
        """Take a folder of this host as the source; the manifest becomes a bundle."""
        self._source = os.path.realpath(os.path.expanduser(request["path"]))
        return self._kept_as_bundle(scan(self._source, self._report).packed())

    def _kept_as_bundle(self, content: bytes) -> Frame:
        digest = hashlib.sha256(content).hexdigest()
        if not self._bundles.has(digest):
            self._bundles.append(digest, self._bundles.size(digest), content[self._bundles.size(digest) :])
            self._bundles.complete(digest)
        return {"digest": digest, "bytes": len(content)}

    def do_data_begin(self, request: Frame, payload: bytes) -> Frame:
        """Begin to make a version, whose manifest has arrived as a bundle; answers the missing chunks."""
        self._sweep()
        self._held.enter_context(self.sets.locked(request["name"]))
        manifest = unpack(self._bundles.path(request["manifest"]).read_bytes())
        version = Version(request["name"], manifest.digest, request["shard"], request["of"])
        self._arrival = Arrival(self.sets, version, manifest, self._source)
        self._transfers.accept = self.accept
        return self._arrival.begin(self._require_driver)

    def do_data_bundle(self, request: Frame, payload: bytes) -> Frame:
        """Make a bundle of chunks of this host, for other hosts to fetch."""
        return self._kept_as_bundle(b"".join(map(self._arrived.read, request["chunks"])))

    def do_data_publish(self, request: Frame, payload: bytes) -> Frame:
        """Put the version into place, and end the push here."""
        self._arrived.publish()
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
            self._arrived.place(request["chunks"], self._bundles.path(request["digest"]).read_bytes())

    def _sweep(self) -> None:
        """Remove the remains of old pushes."""
        old, drafts = time.time() - OLD_SECONDS, self.root / ".drafts"
        for path in drafts.iterdir() if drafts.is_dir() else ():
            if newest_in(path) < old:
                with contextlib.suppress(OSError, ValueError), self.sets.locked(path.name.partition("@")[0]):
                    remove_tree(path)

    # -- sets in place --

    def do_data_list(self, request: Frame, payload: bytes) -> Frame:
        """The sets of this host."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark = identity_of_folder(self.root / ".place")
        return {"place": mark, "sets": [self._described(name) for name in self.sets.names()]}

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
        """Read every byte of a set; answers the damage."""
        kept = self.sets.kept(request["name"])
        return {"digest": kept.version.digest, "damaged": damage(kept, self._require_driver)}

    def do_data_remove(self, request: Frame, payload: bytes) -> Frame:
        with self.sets.locked(request["name"]):
            return {"freed": self.sets.remove(request["name"])}

    def do_data_open(self, request: Frame, payload: bytes) -> Frame:
        """Begin to send a set to the driver; its manifest becomes a bundle."""
        kept = self.sets.kept(request["name"])
        self._reading = Reader(kept.folder, kept.manifest, Chunks(kept.manifest), kept.wanted)
        bundle = self._kept_as_bundle(kept.manifest.packed())
        self._opened.append(bundle["digest"])
        return bundle

    def do_data_part(self, request: Frame, payload: bytes) -> Frame:
        with open(self._bundles.path(request["digest"]), "rb") as file:
            file.seek(request["start"])
            return {"payload": file.read(CHUNK)}

    def do_data_read(self, request: Frame, payload: bytes) -> Frame:
        """The bytes of some chunks of that set."""
        if self._reading is None:
            raise ValueError("no set is open")
        return {"payload": b"".join(self._reading.read(number) for number in request["chunks"])}

    # -- the driver --

    def _report(self, done: int, total: int) -> None:
        """Report the bytes that are read, now and then."""
        if time.monotonic() - self._reported > REPORT_SECONDS:
            self._require_driver()
            self._reported = time.monotonic()
            self._send({"event": "data-read", "done": done, "total": total})

    @staticmethod
    def _require_driver() -> None:
        """End this agent if its lifeline is closed: the thread that reads it is busy with this work."""
        poll = select.poll()
        poll.register(STDIN, 0)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0)):
            raise SystemExit(1)
