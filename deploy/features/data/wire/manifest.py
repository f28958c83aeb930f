"""The manifest of a data set: its files, links and empty folders, and the SHA-256 of each file's chunks.

A file is cut into chunks of CHUNK bytes from its beginning; the last is shorter. A small file is one chunk.
Equal chunks of any files are one chunk. The same content gives the same manifest, byte for byte: it holds no
times and no owners, and one read-only mode for all executable files, another for all others.

`scan` makes the manifest of a folder, and `Reader` reads the chunks.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, AnyStr, NamedTuple

from ....core.wire.files import Entry, require_harmless
from ....core.wire.os_errors import explain, naming

CHUNK = 1 << 22
FORM = 1
MOST_ENTRIES, MOST_CHUNKS, MOST_TEXT = 1_000_000, 1 << 22, 1 << 30
# Braces, brackets and commas of the text: of a few bytes between two of them, Python makes 64 bytes or more.
MOST_SIGNS = 1 << 24
LONGEST_NAME, LONGEST_PATH, MOST_NAMES = 255, 4000, 128
NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class File(NamedTuple):
    """A file: its path in the set, its bytes, whether it may be executed, and the SHA-256 of each chunk."""

    path: str
    size: int
    executable: bool
    chunks: tuple[str, ...]

    def lengths(self) -> Iterator[int]:
        """The bytes of each chunk."""
        return (min(CHUNK, self.size - start) for start in range(0, self.size, CHUNK))


class ManifestLink(NamedTuple):
    """A symbolic link that stays in the set."""

    path: str
    target: str


class Manifest(NamedTuple):
    """A data set, in the order of paths."""

    files: tuple[File, ...]
    links: tuple[ManifestLink, ...] = ()
    folders: tuple[str, ...] = ()
    """Empty folders."""

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)

    def text(self) -> bytes:
        document = {
            "muster_data": FORM,
            "chunk": CHUNK,
            "files": [
                {
                    "path": file.path,
                    "size": file.size,
                    "mode": 0o555 if file.executable else 0o444,
                    "chunks": file.chunks,
                }
                for file in self.files
            ],
            "links": self.links,
            "folders": self.folders,
        }
        return json.dumps(document, separators=(",", ":")).encode()

    def packed(self) -> bytes:
        """The manifest, compressed for transfers."""
        return zlib.compress(self.text(), 1)

    @property
    def digest(self) -> str:
        """The SHA-256 of the manifest: of the whole set, because every chunk's is in it."""
        return hashlib.sha256(self.text()).hexdigest()


class Chunks:
    """The distinct chunks of a manifest, numbered in the order of their first appearance."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.digests: list[str] = []
        self.lengths: list[int] = []
        self.positions: list[list[tuple[int, int]]] = []
        """For each chunk, the files that have it: the number of the file, and the offset in it."""
        self.number: dict[str, int] = {}
        for index, file in enumerate(manifest.files):
            offset = 0
            for digest, length in zip(file.chunks, file.lengths()):
                self._add(digest, length, (index, offset))
                offset += length

    def _add(self, digest: str, length: int, position: tuple[int, int]) -> None:
        number = self.number.setdefault(digest, len(self.digests))
        if number == len(self.digests):
            self.digests.append(digest)
            self.lengths.append(length)
            self.positions.append([])
        if self.lengths[number] != length:
            raise ValueError(f"the chunk {digest} has two lengths in this manifest")
        self.positions[number].append(position)

    def __len__(self) -> int:
        return len(self.digests)

    def parts(self, numbers: Sequence[int], bundle: bytes) -> Iterator[tuple[int, bytes]]:
        """The number and the bytes of each chunk of a bundle; ValueError at the first that is wrong."""
        start = 0
        for number in numbers:
            content = bundle[start : start + self.lengths[number]]
            start += len(content)
            if hashlib.sha256(content).hexdigest() != self.digests[number]:
                raise ValueError("a chunk does not match the manifest")
            yield number, content


def unpack(packed: bytes) -> Manifest:
    """The manifest from another machine, which is not trusted; ValueError if it is malformed."""
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(packed, MOST_TEXT)
    except zlib.error:
        raise ValueError("a manifest that is damaged") from None
    if inflate.unconsumed_tail:
        raise ValueError(f"a manifest of more than {MOST_TEXT} bytes")
    return parse(text)


def parse(text: bytes) -> Manifest:
    """The manifest in a text; ValueError if it is malformed, or could reach out of its folder."""
    if sum(map(text.count, (b"{", b"[", b","))) > MOST_SIGNS:
        raise ValueError("a manifest that is too large to read safely; put small files into archives")
    try:
        document = json.loads(text)
        if document["muster_data"] != FORM or document["chunk"] != CHUNK:
            raise ValueError("a manifest of another version of Muster; bring the same version to both ends")
        files = tuple(map(_file, document["files"]))
        links = tuple(
            ManifestLink(_path(path), _text(target, LONGEST_PATH)) for path, target in document["links"]
        )
        manifest = Manifest(files, links, tuple(map(_path, document["folders"])))
    except (KeyError, TypeError, AttributeError, RecursionError, UnicodeDecodeError, json.JSONDecodeError):
        raise ValueError("this is no manifest of a data set") from None
    require_sound(manifest)
    return manifest


def require_sound(manifest: Manifest) -> None:
    """ValueError unless all paths differ, none is below a file or a link, and the numbers have bounds."""
    leaves = [*(file.path for file in manifest.files), *(link.path for link in manifest.links)]
    paths, targets = [*leaves, *manifest.folders], [link.target for link in manifest.links]
    if len(paths) > MOST_ENTRIES or sum(len(file.chunks) for file in manifest.files) > MOST_CHUNKS:
        raise ValueError(f"a data set has at most {MOST_ENTRIES} files and {MOST_CHUNKS} chunks")
    if len({*paths}) < len(paths):
        raise ValueError("a manifest with the same path twice")
    if deep := [path for path in (*paths, *targets) if path.count("/") >= MOST_NAMES]:
        raise ValueError(f"a manifest with a path of more than {MOST_NAMES} names: {deep[0]!r:.80}")
    paths.sort()
    if above := [leaf for leaf in leaves if has_below(paths, leaf + "/")]:
        raise ValueError(f"a manifest with something below {min(above)!r}, which is not a folder")
    require_harmless([Entry(link.path, "link", link=link.target) for link in manifest.links])


def has_below(ordered: Sequence[AnyStr], folder: AnyStr) -> bool:
    """Whether one of the paths, which are in order, is below a folder; its name ends with a slash.

    A set of all folders could fill the memory: a manifest of 1 MB may unpack to very many long paths.
    """
    index = bisect_left(ordered, folder)
    return index < len(ordered) and ordered[index].startswith(folder)


def encoded(path: str) -> bytes:
    """The bytes of a path, in any locale of this host: paths of Linux are bytes, mostly UTF-8."""
    return path.encode("utf-8", "surrogateescape")


def require_name(name: str) -> str:
    """The name of a data set; ValueError for one that could not be a folder everywhere."""
    if not re.fullmatch(NAME, name):
        raise ValueError(
            f"{name!r} cannot name a data set: at most 100 letters, digits, dots, dashes, underscores"
        )
    return name


def _file(entry: Any) -> File:
    chunks, size, mode = entry["chunks"], entry["size"], entry["mode"]
    if type(size) is not int or not 0 <= size <= CHUNK * MOST_CHUNKS or mode not in (0o444, 0o555):
        raise ValueError(f"a manifest with the size {size!r:.40} or the mode {mode!r:.40}")
    if len(chunks) != -(-size // CHUNK) or not all(map(_DIGEST.fullmatch, chunks)):
        raise ValueError("a manifest whose chunks do not make up its files")
    return File(_path(entry["path"]), size, mode == 0o555, tuple(chunks))


def _path(path: Any) -> str:
    text = _text(path, LONGEST_PATH)
    names = text.split("/")
    if any(name in {"", ".", ".."} or len(encoded(name)) > LONGEST_NAME for name in names):
        raise ValueError(f"a manifest with the path {text!r:.80}")
    return text


def _text(text: Any, most: int) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= most or "\0" in text:
        raise ValueError(f"a manifest with the path {text!r:.80}")
    try:
        encoded(text)
    except UnicodeEncodeError:
        raise ValueError("a manifest with a path that stands for no bytes") from None
    return text


def bitmap(numbers: Sequence[int] | Iterator[int], size: int) -> str:
    """A set of the numbers below `size` as hexadecimal digits, a bit each."""
    bits = bytearray(-(-size // 8))
    for number in numbers:
        bits[number >> 3] |= 1 << (number & 7)
    return bits.hex()


def numbers(bits: str, size: int) -> set[int]:
    """The numbers of a bitmap; ValueError if it is not one for `size` numbers."""
    content = bytes.fromhex(bits)
    if len(content) != -(-size // 8):
        raise ValueError(f"a bitmap of {len(content)} bytes for {size} numbers")
    decoded = {
        start * 8 + bit for start, byte in enumerate(content) if byte for bit in range(8) if byte >> bit & 1
    }
    if decoded and max(decoded) >= size:
        raise ValueError("a bitmap with a number that is too high")
    return decoded


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

    def __init__(self, root: str, chunks: Chunks) -> None:
        self._root, self._chunks = root, chunks
        self._is_file = os.path.isfile(root)

    def read(self, number: int) -> bytes:
        """The bytes of a chunk; OSError if they do not match the manifest."""
        index, offset = self._chunks.positions[number][0]
        name = self._chunks.manifest.files[index].path
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
