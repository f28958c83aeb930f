"""Files and folders for `muster put` and `muster get`: their entries, their parts, and their completion."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import stat
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from .frames import Frame
from .os_errors import naming

CHUNK_BYTES = 1 << 20
# Entries of a folder in one answer, and the characters of their paths: a driver takes lines of 8 MiB.
PAGE, PAGE_TEXT = 8192, 1 << 19
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

    def __init__(self) -> None:
        self._listings: dict[str, Iterator[Entry]] = {}
        """The rest of each listing that the driver has not read to its end."""

    def do_file(self, request: Frame, payload: bytes) -> Frame:
        """The size, mode and SHA-256 of a file; or the mode and the first entries of a folder.

        With `written`, the path is the folder of a job, and the entries are the files that its program wrote:
        those whose path in the copy of the code, or in $MUSTER_OUT, begins so.
        """
        path = path_of(request["path"])
        if "written" in request:
            self._listings[path] = _written(path, request["written"])
            return {"mode": 0o700, **self._page(path)}
        status = os.stat(path)
        if os.path.isdir(path):
            self._listings[path] = entries(path)
            return {"mode": status.st_mode & 0o777, **self._page(path)}
        return {"length": status.st_size, "mode": status.st_mode & 0o777, "digest": digest(path)}

    def do_entries(self, request: Frame, payload: bytes) -> Frame:
        """The next entries of a folder whose first entries `do_file` has sent."""
        return self._page(path_of(request["path"]))

    def _page(self, path: str) -> Frame:
        """The next entries, as many as one line may hold."""
        page: list[Entry] = []
        text = 0
        for entry in self._listings[path]:
            page.append(entry)
            text += len(entry.path) + len(entry.link)
            if len(page) >= PAGE or text > PAGE_TEXT:
                return {"entries": page, "more": True}
        del self._listings[path]
        return {"entries": page, "more": False}

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


def entries(folder: str) -> Iterator[Entry]:
    """All entries below a folder; ValueError for one that cannot be copied to another host."""

    def fail(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders.sort()  # two readings of the same folder have the same order
        for name in sorted(folders + names):
            path = os.path.join(parent, name)
            inner = os.path.relpath(path, folder)
            status = os.lstat(path)
            mode = status.st_mode & 0o777
            if os.path.islink(path):
                yield Entry(inner, "link", link=require_inside(inner, os.readlink(path)))
            elif os.path.isdir(path):
                yield Entry(inner, "folder", mode)
            elif os.path.isfile(path):
                yield Entry(inner, "file", mode, status.st_size, digest(path))
            else:
                raise ValueError(f"{path} is neither file, folder nor link")


def _written(job: str, inner: str) -> Iterator[Entry]:
    """The files that the program of a job wrote, at or below a path; all without one."""
    from .written import Search

    search = Search(job, inner)
    for path, _, target in itertools.chain(search.beside_code(), search.out()):
        if target:
            yield Entry(path, "link", link=target)
            continue
        whole, sha256 = os.path.join(job, path), ""
        with contextlib.suppress(FileNotFoundError):  # the job runs, and has removed it
            status = os.stat(whole)
            with contextlib.suppress(OSError):  # the driver names it
                sha256 = digest(whole)
            yield Entry(path, "file", status.st_mode & 0o777, status.st_size, sha256)


def newest_in(folder: str | os.PathLike[str]) -> float:
    """The time of the last write in a folder, in seconds since 1970; 0 if it does not exist."""
    times = [0.0]
    for parent, _, names in os.walk(folder):
        for name in ("", *names):
            with contextlib.suppress(OSError):
                times.append(os.lstat(os.path.join(parent, name)).st_mtime)
    return max(times)


def listing_digest(listed: Iterable[Entry]) -> str:
    """A digest that is equal for folders with equal contents."""
    return hashlib.sha256(json.dumps(sorted(listed)).encode()).hexdigest()


def require_inside(path: str, link: str = "") -> str:
    """The path, or the target of the link there, if it stays in its folder; else ValueError."""
    if os.path.isabs(path) or os.path.isabs(link):
        raise ValueError(f"{path}{' links to ' + link if link else ''}: outside of the folder")
    reached = os.path.normpath(os.path.join(os.path.dirname(path), link) if link else path)
    if reached.split(os.sep)[0] == ".." or ".." in path.split(os.sep):
        raise ValueError(f"{path}{' links to ' + link if link else ''}: outside of the folder")
    return link or path


def append(draft: str, path: str, content: bytes) -> None:
    """Put bytes at the end of a draft, or of a file in a draft that is a folder."""
    target = os.path.join(draft, require_inside(path)) if path else draft
    if path:
        os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        with open(target, "ab") as file:
            file.write(content)
    except OSError as error:
        raise naming(error, target) from None


def complete(draft: str, wanted: Iterable[Entry]) -> None:
    """Check the files of a folder, and make the rest: links last, so that nothing is written through a link.

    ValueError for an entry that would reach out of the folder: the sender is not trusted.
    """
    made = list(wanted)
    require_harmless(made)
    for entry in made:
        path = os.path.join(draft, entry.path)
        if entry.kind == "folder":
            os.makedirs(path, exist_ok=True)
        elif entry.kind == "file":
            if not os.path.lexists(path):
                append(draft, entry.path, b"")  # an empty file
            if digest(path) != entry.digest:
                raise OSError(f"{entry.path} changed or was damaged on the way; try again")
            _set_mode(draft, entry)
    for entry in made:
        if entry.kind == "link":
            _link(draft, entry)
    for entry in reversed(made):  # a folder comes after its entries: it may become read-only
        if entry.kind == "folder":
            _set_mode(draft, entry)


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


def _link(draft: str, entry: Entry) -> None:
    folder = os.path.join(os.path.realpath(draft), os.path.dirname(entry.path)).rstrip(os.sep)
    os.makedirs(folder, exist_ok=True)
    if os.path.realpath(folder) != folder:
        raise ValueError(f"{entry.path} is below another link")
    path = os.path.join(draft, entry.path)
    if not (os.path.islink(path) and os.readlink(path) == entry.link):  # made by an interrupted put
        os.symlink(entry.link, path)


def _set_mode(draft: str, entry: Entry) -> None:
    """Give a file or folder its mode, from folder to folder; OSError where a link is on the way."""
    with contextlib.ExitStack() as opened:
        descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
        opened.callback(os.close, descriptor)
        for name in entry.path.split(os.sep):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
            opened.callback(os.close, descriptor)
        os.fchmod(descriptor, entry.mode & 0o777)


def path_of(path: str) -> str:
    """The absolute path for a user's argument; a relative one begins at the user's home."""
    return os.path.join(os.path.expanduser("~"), os.path.expanduser(path))
