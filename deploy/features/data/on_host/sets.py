"""The data sets of a host, below ~/.muster/data; ranks read them as $MUSTER_DATA/NAME.

NAME                        a link to the current version
.sets/NAME@DIGEST           a version: its files, read-only
.sets/NAME@DIGEST.json      its manifest
.drafts/NAME@DIGEST         a version that still arrives (class Draft)
.chunks/                    bundles for other hosts
.lock.NAME                  held by the agent that changes NAME
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from ....core.wire.durable import sync_file_system, sync_folder, write_atomically
from ....core.wire.os_errors import naming
from ....core.wire.store import every_lock_held
from ..wire.manifest import (
    CHUNK,
    Chunks,
    File,
    Manifest,
    ManifestLink,
    encoded,
    has_below,
    parse,
    require_name,
    right_part,
)

# All files get this time, the first that a ZIP archive can hold, 1980-01-01. A later write changes it, so a
# set with these times and sizes is taken as unchanged; `verify` reads the bytes.
TIME_NS = 315532800 * 10**9


class Draft:
    """The files of a manifest in a folder. `lacking`: by chunk, the positions without it."""

    def __init__(self, folder: str, chunks: Chunks) -> None:
        self.folder, self.manifest, self.chunks = os.fsencode(folder), chunks.manifest, chunks
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


class Version(NamedTuple):
    """A version of a data set."""

    name: str
    digest: str

    @property
    def folder_name(self) -> str:
        return f"{self.name}@{self.digest[:16]}"


class Kept(NamedTuple):
    """A data set that is in place."""

    version: Version
    manifest: Manifest
    folder: str


class Sets:
    """The data sets below one folder. `jobs`: the folder of this host's jobs, which may be reading them."""

    def __init__(self, root: Path, jobs: Path) -> None:
        self.root, self._jobs = root, jobs

    def draft_folder(self, version: Version) -> str:
        """The folder in which a version is made; a draft of another version of this name is moved there."""
        drafts = self.root / ".drafts"
        drafts.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = drafts / version.folder_name
        for other in sorted(drafts.glob(f"{version.name}@*")):
            if other != folder and not folder.exists():
                os.chmod(other, 0o700)
                other.rename(folder)
            elif other != folder:
                remove_tree(other)
        return str(folder)

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold the lock of a set; OSError if another agent changes it."""
        require_name(name)
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.root / f".lock.{name}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OSError(
                    f"another command is changing the data set {name} there; wait for its end"
                ) from None
            yield
        finally:
            os.close(descriptor)

    def names(self) -> list[str]:
        """The names of the sets that are in place."""
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if path.is_symlink() and path.name[0] != ".")

    def kept(self, name: str) -> Kept:
        """A set that is in place; ValueError if there is none, or if its manifest is damaged."""
        require_name(name)
        try:
            return self._version(os.path.basename(os.readlink(self.root / name)))
        except OSError:
            raise ValueError(f"there is no data set {name}") from None

    def all_kept(self) -> Iterator[Kept]:
        """Every version of this host, also those that no name points to."""
        for path in sorted((self.root / ".sets").glob("*.json")):
            with contextlib.suppress(OSError, ValueError):
                yield self._version(path.stem)

    def _version(self, folder_name: str) -> Kept:
        folder = self.root / ".sets" / folder_name
        text = (self.root / ".sets" / f"{folder_name}.json").read_bytes()
        manifest = parse(text)
        return Kept(Version(folder_name.partition("@")[0], manifest.digest), manifest, str(folder))

    def publish(self, version: Version, draft: Draft) -> None:
        """Put a complete draft into place: the name points to the old version, then to the new one."""
        draft.finish()
        draft.close_folders()
        sets = self.root / ".sets"
        sets.mkdir(mode=0o700, exist_ok=True)
        folder = sets / version.folder_name
        write_atomically(sets / f"{version.folder_name}.json", draft.manifest.text(), 0o444)
        # Later pushes and ranks trust a set by its name, without reading it.
        sync_file_system(os.fsdecode(draft.folder))
        damaged = self._set_aside(folder)  # this version, which the draft repairs; a job may be reading it
        os.rename(draft.folder, folder)
        os.chmod(folder, 0o500)
        if damaged:
            remove_tree(damaged)
        self.point_to(version)

    def point_to(self, version: Version) -> None:
        """Point the name to this version, and remove other versions that no job may be reading."""
        link = self.root / f".link.{secrets.token_hex(8)}"
        os.symlink(f".sets/{version.folder_name}", link)
        os.replace(link, self.root / version.name)
        sync_folder(self.root)
        if not self.running_jobs():
            self._sweep(version.name, version.folder_name)

    def remove(self, name: str) -> int:
        """Remove a set with all its versions; returns its bytes. ValueError while a job runs on this host."""
        if jobs := self.running_jobs():
            raise ValueError(f"the job {jobs[0]} runs on this host, and may be reading it; stop it first")
        require_name(name)
        size = 0
        with contextlib.suppress(ValueError):
            size = self.kept(name).manifest.size
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.root / name)
        self._sweep(name, "")
        for draft in (self.root / ".drafts").glob(f"{name}@*"):
            remove_tree(draft)
        return size

    def _sweep(self, name: str, kept: str) -> None:
        """Remove the versions of a name, except one; and the rest of interrupted removals."""
        for record in (self.root / ".sets").glob(f"{name}@*.json"):
            if record.stem != kept:
                record.unlink()
                if gone := self._set_aside(record.with_suffix("")):
                    remove_tree(gone)
        for gone in (self.root / ".sets").glob(".gone.*"):
            remove_tree(gone)

    def _set_aside(self, folder: Path) -> Path | None:
        """Rename a version, at once, to a name that the next sweep removes; None if there is none."""
        if not folder.exists():
            return None
        os.chmod(folder, 0o700)
        gone = folder.parent / f".gone.{secrets.token_hex(8)}"
        folder.rename(gone)
        return gone

    def running_jobs(self) -> list[str]:
        """The jobs of this host that an agent or a driver holds."""
        running = []
        for folder in sorted(self._jobs.iterdir()) if self._jobs.is_dir() else ():
            try:
                with every_lock_held(folder):
                    pass
            except OSError:
                running.append(folder.name)
        return running


class KnownChunks:
    """The chunks of a new manifest that are on this disk already, in sets that are in place."""

    def __init__(self, sets: Sets, chunks: Chunks) -> None:
        self._chunks = chunks
        self._whole: dict[tuple[tuple[str, ...], bool], bytes] = {}
        self._parts: dict[int, tuple[bytes, int]] = {}
        for kept in sets.all_kept():
            for file in kept.manifest.files:
                self._add(os.fsencode(kept.folder), file)

    def _add(self, folder: bytes, file: File) -> None:
        """Note the chunks of a file; those of a file that was changed are read first."""
        numbers = self._chunks.number
        ours = [(at, numbers[digest]) for at, digest in enumerate(file.chunks) if digest in numbers]
        path = os.path.join(folder, encoded(file.path))
        if ours and is_intact(path, file):
            self._parts.update({number: (path, at * CHUNK) for at, number in ours})
            if len(ours) == len(file.chunks):
                self._whole[file.chunks, file.executable] = path
            return
        for at, number in ours:
            if number not in self._parts:
                self._parts[number] = (path, at * CHUNK)
                self.read(number)  # forgets a wrong chunk

    def whole(self, digests: tuple[str, ...], *, executable: bool) -> bytes | None:
        """The path of a file that has just these chunks."""
        return self._whole.get((digests, executable))

    def numbers(self) -> set[int]:
        """The chunks on this disk."""
        return {*self._parts}

    def read(self, number: int) -> bytes | None:
        """A chunk; None if it is missing or has changed."""
        if number in self._parts:
            path, offset = self._parts[number]
            with contextlib.suppress(OSError):
                length, digest = self._chunks.lengths[number], self._chunks.digests[number]
                if (content := right_part(path, offset, length, digest)) is not None:
                    return content
            del self._parts[number]
        return None


def intact(kept: Kept) -> bool:
    """Whether all entries of a version have their size, time and mode; no bytes are read."""
    folder, manifest = os.fsencode(kept.folder), kept.manifest
    return (
        all(is_intact(os.path.join(folder, encoded(file.path)), file) for file in manifest.files)
        and all(same_link(os.path.join(folder, encoded(link.path)), link) for link in manifest.links)
        and all(os.path.isdir(os.path.join(folder, encoded(name))) for name in manifest.folders)
    )


MOST_NAMED = 20


def damage(kept: Kept, alive: Callable[[], object] = lambda: None) -> list[str]:
    """The damage of each file, at most MOST_NAMED lines. Marks the files: a push repairs them.

    `alive`: called for each file; may raise to end the work.
    """
    lines: list[str] = []
    top = os.fsencode(kept.folder)
    expected = set()
    for file in kept.manifest.files:
        alive()
        expected.add(path := os.path.join(top, encoded(file.path)))
        if wrong := _wrong(path, file):
            _mark(path)
            lines.append(f"{file.path!r}: {wrong}")
    for link in kept.manifest.links:
        expected.add(path := os.path.join(top, encoded(link.path)))
        if not same_link(path, link):
            lines.append(f"{link.path!r}: the link is missing, or has another target")
    for folder, _, names in os.walk(top):
        extra = (os.path.join(folder, name) for name in names)
        lines += [
            f"{os.fsdecode(os.path.relpath(path, top))!r}: not of the set"
            for path in extra
            if path not in expected
        ]
    return lines if len(lines) <= MOST_NAMED else [*lines[:MOST_NAMED], f"and {len(lines) - MOST_NAMED} more"]


def _wrong(path: bytes, file: File) -> str:
    """The damage of a file; empty if it is right."""
    if not os.path.lexists(path):
        return "missing"
    try:
        for at, length, digest in zip(range(0, file.size, CHUNK), file.lengths(), file.chunks):
            if right_part(path, at, length, digest) is None:
                return f"other bytes than were sent, from {at} on"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if is_intact(path, file) else "its bytes are right, but not its size, mode or time"


def _mark(path: bytes) -> None:
    """Give a damaged file another time, so that a push does not take it as unchanged."""
    with contextlib.suppress(OSError):
        os.utime(path)


def remove_tree(folder: Path) -> None:
    """Remove a folder with read-only folders in it."""
    for inner, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            os.chmod(inner, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
