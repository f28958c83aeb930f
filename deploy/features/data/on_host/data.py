"""The agent's part in `muster data`: keeps the data sets of this host, and receives chunks of new ones.

Chunks travel in bundles of at most 4 MiB, as files from host to host (core/agent/transfers.py). Long
work ends early when the driver is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ....core.agent.transfers import OLD_SECONDS, Blobs, HostTransfers
from ....core.wire.files import newest_in
from ....core.wire.frames import Frame
from ....core.wire.os_errors import explain
from ....core.wire.private_folders import identity_of_folder
from ..wire.manifest import CHUNK, Chunks, Manifest, Reader, bitmap, scan, unpack
from .sets import Draft, KnownChunks, Sets, Version, damage, intact, remove_tree

SPARE = 1 << 27  # bytes for chunks that other hosts still have to get, and for the file system itself
BLOCK = 4096


class Arrival:
    """One version on its way to this host. `source`: a folder of this host that has all of it, if any."""

    def __init__(self, sets: Sets, version: Version, manifest: Manifest, source: str) -> None:
        self._sets, self.version, self.manifest = sets, version, manifest
        self.chunks = Chunks(manifest)
        self._reader = Reader(source, self.chunks) if source else None
        self._known = KnownChunks(sets, self.chunks)
        self._draft: Draft | None = None
        self._writing = threading.Lock()

    def begin(self, alive: Callable[[], object]) -> Frame:
        """Adopt present content; answers the chunks that this host lacks, and those that it can send.

        `alive`: called now and then; raises when the driver is gone. OSError for a disk that is too full.
        """
        if not self._is_in_place():
            draft = Draft(self._sets.draft_folder(self.version), self.chunks)
            draft.adopt(alive)
            self._link(draft, alive)
            self._require_room(draft)
            self._copy(draft, alive)
            self._draft = draft
        lacking = self._draft.lacking if self._draft else {}
        count = len(self.chunks)
        have = range(count) if self._reader else ({*range(count)} - lacking.keys()) | self._known.numbers()
        return {"lacking": bitmap(iter(lacking), count), "have": bitmap(iter(have), count)}

    def _is_in_place(self) -> bool:
        with contextlib.suppress(ValueError, OSError):
            return any(kept.version == self.version and intact(kept) for kept in self._sets.all_kept())
        return False

    def _link(self, draft: Draft, alive: Callable[[], object]) -> None:
        """Use the files of other versions and sets that are the same."""
        for index, file in enumerate(self.manifest.files):
            source = self._known.whole(file.chunks, executable=file.executable)
            if source and not draft.has(index):
                alive()
                draft.link(index, source)

    def _copy(self, draft: Draft, alive: Callable[[], object]) -> None:
        """Copy the chunks that are in other files of this host, or in the source."""
        for number in sorted(draft.lacking if self._reader else self._known.numbers() & draft.lacking.keys()):
            alive()
            content = self._known.read(number)
            if content is None and self._reader:
                content = self._reader.read(number)
            if content is not None:
                draft.place(number, content)

    def _require_room(self, draft: Draft) -> None:
        """OSError if the disk has no room for the missing content; checked before anything is sent."""
        folder = os.fsdecode(draft.folder)
        status = os.statvfs(folder)
        positions = [position for positions in draft.lacking.values() for position in positions]
        files = len({index for index, _ in positions})
        size = sum(self._length(position) for position in positions) + files * BLOCK + SPARE
        free, root = status.f_bavail * status.f_frsize, shlex.quote(str(self._sets.root))
        if size > free:
            raise OSError(
                f"{self.version.name} needs {size / 1e9:.1f} GB more in {self._sets.root}, and "
                f"{free / 1e9:.1f} GB are free; make room there: df -h {root}"
            )
        if 0 < status.f_favail < files:
            raise OSError(
                f"{self.version.name} needs {files} more files in {self._sets.root}, and its disk can take "
                f"{status.f_favail} (inodes): df -i {root}; pack many small files into one archive"
            )

    def _length(self, position: tuple[int, int]) -> int:
        index, offset = position
        return min(CHUNK, self.manifest.files[index].size - offset)

    def place(self, numbers: Sequence[int], bundle: bytes) -> None:
        """Put the chunks of a bundle into the files; ValueError if one does not match the manifest."""
        for number, content in self.chunks.parts(numbers, bundle):
            if self._draft:
                with self._writing:
                    self._draft.place(number, content)

    def read(self, number: int) -> bytes:
        """A chunk, for another host; OSError if it is missing."""
        if self._reader:
            return self._reader.read(number)
        if self._draft and number not in self._draft.lacking:
            with contextlib.suppress(OSError):
                folder = os.fsdecode(self._draft.folder)
                return Reader(folder, self.chunks).read(number)
        content = self._known.read(number)
        if content is None:
            raise OSError("a chunk that was here is gone; push again")
        return content

    def publish(self) -> None:
        """Put the version into place; ValueError if chunks are lacking."""
        if self._draft is None:
            self._sets.point_to(self.version)
            return
        if self._draft.lacking:
            raise ValueError(f"{len(self._draft.lacking)} chunks are still lacking; push again")
        self._sets.publish(self.version, self._draft)


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

    def close(self) -> None:
        """Give up the locks."""
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
        version = Version(request["name"], manifest.digest)
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
        manifest, digest = kept.manifest, kept.version.digest
        problem = "" if intact(kept) else "files of it were changed or removed there; push it again"
        size = manifest.size
        return {"name": name, "files": len(manifest.files), "bytes": size, "digest": digest, "error": problem}

    def do_data_verify(self, request: Frame, payload: bytes) -> Frame:
        """Read every byte of a set; answers the damage."""
        kept = self.sets.kept(request["name"])
        return {"digest": kept.version.digest, "damaged": damage(kept, self._require_driver)}

    def do_data_remove(self, request: Frame, payload: bytes) -> Frame:
        with self.sets.locked(request["name"]):
            return {"freed": self.sets.remove(request["name"])}

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
