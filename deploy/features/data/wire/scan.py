"""Reads the source folder of a data set: its manifest, and later the bytes of its chunks."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ....core.wire.os_errors import explain, naming
from .manifest import CHUNK, Chunks, File, Manifest, ManifestLink, encoded, require_sound

MOST_REFUSALS = 10
OnProgress = Callable[[int, int], None]


class FolderContents(NamedTuple):
    """The files, links and empty folders below a folder, and the bytes of all files."""

    files: list[str]
    links: list[ManifestLink]
    folders: list[str]
    size: int


def scan(root: str, on_progress: OnProgress = lambda done, total: None) -> Manifest:
    """The manifest of a folder, or of one file. Reads everything; `on_progress` gets the bytes read.

    ValueError, with every reason at once, if a data set cannot hold the content; OSError if it is unreadable.
    """
    if stat.S_ISREG(os.stat(root).st_mode):
        name = os.path.basename(root.rstrip("/"))
        return Manifest((_read(os.fsencode(root), name, lambda size: None),))
    contents = find(root)
    done = 0

    def add(size: int) -> None:
        nonlocal done
        done += size
        on_progress(done, contents.size)

    files = tuple(_read(_join(root, path), path, add) for path in contents.files)
    manifest = Manifest(files, tuple(contents.links), tuple(contents.folders))
    try:
        require_sound(manifest)
    except ValueError as error:
        raise ValueError(f"{root}: {error}") from None
    return manifest


def find(root: str) -> FolderContents:
    """Everything in a folder, in the order of paths; ValueError names entries that no data set may hold."""
    contents, refused = FolderContents([], [], [], 0), []
    size = 0
    top = os.path.realpath(os.fsencode(root))
    for path, entry in _walk(top, b""):
        name = path.decode("utf-8", "surrogateescape")
        if entry is None:
            contents.folders.append(name)
        elif entry.is_symlink():
            target = os.readlink(entry.path).decode("utf-8", "surrogateescape")
            inside = os.path.normpath(os.path.join(os.path.dirname(name), target))
            if os.path.isabs(target) or inside.split("/")[0] == "..":
                refused.append(
                    f"{name!r} is a link to {target!r}, outside of the folder: copy the file there"
                )
            contents.links.append(ManifestLink(name, target))
        elif entry.is_file(follow_symlinks=False):
            contents.files.append(name)
            size += entry.stat(follow_symlinks=False).st_size
        else:
            refused.append(f"{name!r} is neither file, folder nor link: a socket, pipe or device")
    if refused:
        more = [f"and {len(refused) - MOST_REFUSALS} more"] if len(refused) > MOST_REFUSALS else []
        raise ValueError("\n".join(f"{root}: {text}" for text in refused[:MOST_REFUSALS] + more))
    return contents._replace(size=size)


def _walk(top: bytes, below: bytes) -> Iterator[tuple[bytes, os.DirEntry[bytes] | None]]:
    """Each file and link, and each folder without entries (None), in the order of the bytes of names."""
    with os.scandir(os.path.join(top, below) if below else top) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    if below and not ordered:
        yield below, None
    for entry in ordered:
        path = os.path.join(below, entry.name)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(top, path)
        else:
            yield path, entry


def _read(path: bytes, name: str, add: Callable[[int], None]) -> File:
    """The manifest's entry of a file; OSError for a file that changes meanwhile."""
    chunks: list[str] = []
    try:
        with open(path, "rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            while len(chunks) * CHUNK <= before.st_size and (content := _fill(file.fileno())):
                chunks.append(hashlib.sha256(content).hexdigest())
                add(len(content))
            after = os.fstat(file.fileno())
    except OSError as error:
        raise naming(error, os.fsdecode(path)) from None
    if _version(before) != _version(after) or len(chunks) != -(-after.st_size // CHUNK):
        raise changed(name)
    return File(name, after.st_size, bool(after.st_mode & stat.S_IXUSR), tuple(chunks))


def _fill(descriptor: int) -> bytes:
    """The next chunk of a file; shorter only at its end."""
    content = os.read(descriptor, CHUNK)
    while content and len(content) < CHUNK and (more := os.read(descriptor, CHUNK - len(content))):
        content += more
    return content


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino


def changed(name: str) -> OSError:
    """The error for a file that has changed."""
    return OSError(f"{name!r} changes while it is read; push again when nothing writes to the folder")


class Reader:
    """Reads the chunks of a manifest from a folder that has its files."""

    def __init__(self, root: str, manifest: Manifest, chunks: Chunks) -> None:
        self._root, self._manifest, self._chunks = root, manifest, chunks
        self._is_file = os.path.isfile(root)

    def read(self, number: int) -> bytes:
        """The bytes of a chunk; OSError if they do not match the manifest."""
        index, offset = self._chunks.positions[number][0]
        name = self._manifest.files[index].path
        path = os.fsencode(self._root) if self._is_file else _join(self._root, name)
        try:
            content = read_part(path, offset, self._chunks.lengths[number])
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise OSError(f"{explain(naming(error, os.fsdecode(path)))}: it was there before") from None
            raise naming(error, os.fsdecode(path)) from None
        if hashlib.sha256(content).hexdigest() != self._chunks.digests[number]:
            raise changed(name)
        return content


def right_part(path: bytes, offset: int, length: int, digest: str) -> bytes | None:
    """Bytes of a file if they have this SHA-256, else None."""
    content = read_part(path, offset, length)
    return content if hashlib.sha256(content).hexdigest() == digest else None


def read_part(path: bytes, offset: int, length: int) -> bytes:
    """Bytes of a file; fewer if it ends before, and never through a link in its last name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        content = os.pread(descriptor, length, offset)
        while len(content) < length and (
            more := os.pread(descriptor, length - len(content), offset + len(content))
        ):
            content += more
    finally:
        os.close(descriptor)
    return content


def _join(root: str, name: str) -> bytes:
    return os.path.join(os.fsencode(root), encoded(name))
