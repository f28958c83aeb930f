"""A data set that is being made in a folder: accepts chunks in any order, and tracks the missing ones.

The folder is the only record of the chunks that have arrived. After an interruption, `adopt` reads it and
keeps only chunks with the right SHA-256.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable

from ....core.wire.os_errors import naming
from ..wire.manifest import CHUNK, Chunks, File, Manifest, ManifestLink, encoded, has_below
from ..wire.scan import right_part

# All files get this time, the first that a ZIP archive can hold, 1980-01-01. A later write changes it, so a
# set with these times and sizes is taken as unchanged; `verify` reads the bytes.
TIME_NS = 315532800 * 10**9


class Draft:
    """The files of a manifest in a folder. `lacking`: by chunk, the positions without it."""

    def __init__(self, folder: str, manifest: Manifest, chunks: Chunks) -> None:
        self.folder, self.manifest, self.chunks = os.fsencode(folder), manifest, chunks
        self.lacking = {number: [*positions] for number, positions in enumerate(chunks.positions)}
        self._made = {self.folder}
        """The folders that exist."""

    def path(self, name: str) -> bytes:
        """The path of an entry of the set."""
        return os.path.join(self.folder, encoded(name))

    def adopt(self, alive: Callable[[], object] = lambda: None) -> None:
        """Keep the chunks of an interrupted attempt, and remove everything that is not of the set.

        `alive`: called for each file; may raise to end the work.
        """
        os.makedirs(self.folder, 0o700, exist_ok=True)
        status = os.lstat(self.folder)
        # Its name follows from the set, so in a folder that others can write to they may have put it there.
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise OSError(f"{os.fsdecode(self.folder)} exists, and is not your folder; remove it")
        files = {encoded(file.path): index for index, file in enumerate(self.manifest.files)}
        ordered = sorted(files)
        for folder, _, _ in os.walk(self.folder):
            os.chmod(folder, 0o700)  # `close_folders` may have made it read-only
        for folder, folders, names in os.walk(self.folder, topdown=False):
            for name in names + [name for name in folders if os.path.islink(os.path.join(folder, name))]:
                alive()
                path = os.path.join(folder, name)
                index = files.get(os.path.relpath(path, self.folder))
                if index is None or not self._keeps(path, index):
                    os.unlink(path)
            if folder != self.folder and not has_below(ordered, os.path.relpath(folder, self.folder) + b"/"):
                with contextlib.suppress(OSError):  # its entries are newer
                    os.rmdir(folder)

    def _keeps(self, path: bytes, index: int) -> bool:
        """Decide whether to keep a file of the draft; if it is kept, its correct chunks count as present."""
        file = self.manifest.files[index]
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > file.size or status.st_nlink > 1:
            return False  # a file with another name is linked again, if it still belongs here
        parts = zip(range(0, file.size, CHUNK), file.lengths(), file.chunks)
        right = [at for at, length, digest in parts if right_part(path, at, length, digest) is not None]
        if len(file.chunks) == 1:
            kept = bool(right) and is_intact(path, file)  # its time and mode are not set again
        else:
            kept = bool(right) and (len(file.chunks) == len(right) or bool(status.st_mode & stat.S_IWUSR))
        for at in right if kept else ():
            self._got(self.chunks.number[file.chunks[at // CHUNK]], (index, at))
        return kept

    def _got(self, number: int, position: tuple[int, int]) -> None:
        positions = self.lacking.get(number, [])
        if position in positions:
            positions.remove(position)
        if not positions:
            self.lacking.pop(number, None)

    def has(self, index: int) -> bool:
        """Whether all chunks of a file are in it."""
        digests = enumerate(self.manifest.files[index].chunks)
        positions = ((self.chunks.number[digest], (index, at * CHUNK)) for at, digest in digests)
        return all(position not in self.lacking.get(number, ()) for number, position in positions)

    def link(self, index: int, source: bytes) -> bool:
        """Make a file a hard link of one on this disk; False if it cannot be linked."""
        file = self.manifest.files[index]
        path = self.path(file.path)
        self._make_room(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        try:
            os.link(source, path, follow_symlinks=False)
        except OSError:  # too many links, or a disk without hard links: it is copied
            return False
        for number, digest in enumerate(file.chunks):
            self._got(self.chunks.number[digest], (index, number * CHUNK))
        return True

    def place(self, number: int, content: bytes) -> None:
        """Write a chunk, whose SHA-256 the caller has checked, into every file that lacks it."""
        for index, offset in self.lacking.pop(number, ()):
            file = self.manifest.files[index]
            path = self.path(file.path)
            self._make_room(path)
            try:
                self._write(path, file, offset, content)
            except OSError as error:
                self.lacking.setdefault(number, []).append((index, offset))
                raise naming(error, os.fsdecode(path)) from None

    @staticmethod
    def _write(path: bytes, file: File, offset: int, content: bytes) -> None:
        flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            # Nothing of a new file has been written yet: zeros may stay a hole.
            fresh = os.fstat(descriptor).st_size <= offset
            if fresh and not content.strip(b"\0"):
                os.ftruncate(descriptor, offset + len(content))
            else:
                view = memoryview(content)
                while view:
                    written = os.pwrite(descriptor, view, offset)
                    view, offset = view[written:], offset + written
            if len(file.chunks) == 1:
                _give_time_and_mode(descriptor, file)
        finally:
            os.close(descriptor)

    def _make_room(self, path: bytes) -> None:
        folder = os.path.dirname(path)
        if folder not in self._made:
            os.makedirs(folder, 0o700, exist_ok=True)
            self._made.add(folder)

    def finish(self) -> None:
        """Make the rest when no chunk is lacking: empty files, links, empty folders, and the modes."""
        for file in self.manifest.files:
            path = self.path(file.path)
            if len(file.chunks) != 1:
                self._make_room(path)
                descriptor = os.open(path, os.O_CREAT | os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                try:
                    _give_time_and_mode(descriptor, file)
                finally:
                    os.close(descriptor)
        for name in self.manifest.folders:
            os.makedirs(self.path(name), 0o700, exist_ok=True)
        for link in self.manifest.links:
            self._make_room(self.path(link.path))
            os.symlink(encoded(link.target), self.path(link.path))

    def close_folders(self) -> None:
        """Make every folder read-only, except the set's own, which has yet to be moved."""
        for folder, folders, _ in os.walk(self.folder):
            for name in folders:
                if not os.path.islink(path := os.path.join(folder, name)):
                    os.chmod(path, 0o500)


def _give_time_and_mode(descriptor: int, file: File) -> None:
    """Give a file its time and mode; the mode last, because a read-only file is taken as complete."""
    os.utime(descriptor, ns=(TIME_NS, TIME_NS))
    os.fchmod(descriptor, 0o555 if file.executable else 0o444)


def is_intact(path: bytes, file: File) -> bool:
    """Whether a file has the size, time and mode that it was made with; its bytes are not read."""
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        mode = stat.S_IFREG | (0o555 if file.executable else 0o444)
        return (status.st_mode, status.st_size, status.st_mtime_ns) == (mode, file.size, TIME_NS)
    return False


def same_link(path: bytes, link: ManifestLink) -> bool:
    """Whether a link has its target."""
    with contextlib.suppress(OSError):
        return os.readlink(path) == encoded(link.target)
    return False
