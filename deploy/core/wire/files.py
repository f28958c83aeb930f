"""Files of this host: their parts and SHA-256, and what an entry of a folder from elsewhere may be."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

from .frames import Frame

CHUNK_BYTES = 1 << 20
KINDS = ("folder", "file", "link")


class Entry(NamedTuple):
    """An entry of a folder: its path there; of a file its bytes and SHA-256, of a link its target."""

    path: str
    kind: str
    """`folder`, `file` or `link`."""
    mode: int = 0o755
    length: int = 0
    digest: str = ""
    link: str = ""


class Files:
    """Files by their path; a relative path begins at the user's home."""

    def do_file_part(self, request: Frame, payload: bytes) -> Frame:
        """Bytes of a file from `start` on, at most `most`; none if there is no file."""
        with contextlib.suppress(FileNotFoundError), open_regular(path_of(request["path"])) as file:
            file.seek(request["start"])
            return {"payload": file.read(request["most"])}
        return {}


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read it. OSError for a folder, and for a FIFO or device, where a read may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """The content of a file, opened in the same way."""
    with open_regular(path) as file:
        return file.read()


def digest(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file."""
    sha256 = hashlib.sha256()
    with open_regular(path) as file:
        while part := file.read(CHUNK_BYTES):
            sha256.update(part)
    return sha256.hexdigest()


def newest_in(folder: str | os.PathLike[str]) -> float:
    """The time of the last write in a folder, in seconds since 1970; 0 if it does not exist."""
    times = [0.0]
    for parent, _, names in os.walk(folder):
        for name in ("", *names):
            with contextlib.suppress(OSError):
                times.append(os.lstat(os.path.join(parent, name)).st_mtime)
    return max(times)


def require_inside(path: str, link: str = "") -> str:
    """The path, or the target of the link there, if it stays in its folder; else ValueError."""
    if os.path.isabs(path) or os.path.isabs(link):
        raise ValueError(f"{path}{' links to ' + link if link else ''}: outside of the folder")
    reached = os.path.normpath(os.path.join(os.path.dirname(path), link) if link else path)
    if reached.split(os.sep)[0] == ".." or ".." in path.split(os.sep):
        raise ValueError(f"{path}{' links to ' + link if link else ''}: outside of the folder")
    return link or path


def require_harmless(made: Iterable[Entry]) -> None:
    """ValueError for an entry that would reach out of its folder, or that is a link through another link."""
    links = {entry.path for entry in made if entry.kind == "link"}
    for entry in made:
        if entry.kind not in KINDS:
            raise ValueError(f"{entry.path} is neither file, folder nor link")
        require_inside(entry.path, entry.link if entry.kind == "link" else "")
        if os.path.normpath(entry.path) != entry.path or entry.path == ".":
            raise ValueError(f"{entry.path} is not a path in the folder")
        if entry.kind == "link":
            # Whether a path stays inside depends on the links on its way, so there must be none.
            names = os.path.dirname(entry.path).split(os.sep) if os.sep in entry.path else []
            for name in entry.link.split(os.sep):
                if os.sep.join(names) in links:
                    raise ValueError(f"{entry.path} links to {entry.link}: through another link")
                names = names[:-1] if name == ".." else [*names, name] if name not in {"", "."} else names


def path_of(path: str) -> str:
    """The absolute path for a user's argument; a relative one begins at the user's home."""
    return os.path.join(os.path.expanduser("~"), os.path.expanduser(path))
