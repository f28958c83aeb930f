"""A version of a data set that arrives on this host: its chunks, the missing ones, and their files."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import threading
from collections.abc import Callable, Sequence

from ....core.wire.frames import Frame
from ..wire.draft import Draft
from ..wire.manifest import CHUNK, Chunks, Manifest, bitmap
from ..wire.scan import Reader
from ..wire.sets import KnownChunks, Sets, Version, intact

SPARE = 1 << 27  # bytes for chunks that other hosts still have to get, and for the file system itself
BLOCK = 4096


class Arrival:
    """One version on its way to this host. `source`: a folder of this host that has all of it, if any."""

    def __init__(self, sets: Sets, version: Version, manifest: Manifest, source: str) -> None:
        self._sets, self.version, self.manifest = sets, version, manifest
        self.chunks = Chunks(manifest)
        self.wanted = manifest.shard(version.shard, version.of)
        self._reader = Reader(source, manifest, self.chunks) if source else None
        self._known = KnownChunks(sets, self.chunks)
        self._draft: Draft | None = None
        self._writing = threading.Lock()

    def begin(self, alive: Callable[[], object]) -> Frame:
        """Adopt present content; answers the chunks that this host lacks, and those that it can send.

        `alive`: called now and then; raises when the driver is gone. OSError for a disk that is too full.
        """
        if not self._is_in_place():
            draft = Draft(self._sets.draft_folder(self.version), self.manifest, self.chunks, self.wanted)
            draft.adopt(alive)
            self._link(draft, alive)
            self._require_room(draft)
            self._require_cases()
            self._copy(draft, alive)
            self._draft = draft
        lacking = self._draft.lacking if self._draft else {}
        count = len(self.chunks)
        wanted = {
            self.chunks.number[digest]
            for index in self.wanted
            for digest in self.manifest.files[index].chunks
        }
        have = range(count) if self._reader else (wanted - lacking.keys()) | self._known.numbers()
        return {"lacking": bitmap(iter(lacking), count), "have": bitmap(iter(have), count)}

    def _is_in_place(self) -> bool:
        with contextlib.suppress(ValueError, OSError):
            return any(kept.version == self.version and intact(kept) for kept in self._sets.all_kept())
        return False

    def _link(self, draft: Draft, alive: Callable[[], object]) -> None:
        """Use the files of other versions and sets that are the same."""
        for index in self.wanted:
            file = self.manifest.files[index]
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
                f"{self.version.name} has {files} files to come, and the disk of {self._sets.root} has room "
                f"for {status.f_favail}: df -i {root}; many small files fit as one archive"
            )

    def _length(self, position: tuple[int, int]) -> int:
        index, offset = position
        return min(CHUNK, self.manifest.files[index].size - offset)

    def _require_cases(self) -> None:
        """ValueError for names that differ in case alone, on a disk that takes them for the same."""
        folded: dict[str, str] = {}
        for index in self.wanted:
            path = self.manifest.files[index].path
            if folded.setdefault(path.casefold(), path) != path:
                probe = self._sets.root / f".case.{secrets.token_hex(8)}.x"
                probe.touch()
                same = probe.with_suffix(".X").exists()
                probe.unlink()
                if same:
                    first = folded[path.casefold()]
                    raise ValueError(
                        f"{first!r} and {path!r} are the same name on the disk of {self._sets.root}"
                    )
                return

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
                return self._draft.read(number)
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
