"""Files and folders of `muster put` and `muster get`: listed page by page, and completed. On both sides."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator

from ...core.wire.files import Entry, digest, path_of, require_harmless, require_inside
from ...core.wire.frames import Frame
from ...core.wire.os_errors import naming
from ...core.wire.written import Search

# Entries of a folder in one answer, and the characters of their paths: a driver takes lines of 8 MiB.
PAGE, PAGE_TEXT = 8192, 1 << 19


class Listings:
    """Files and folders by their path; a relative path begins at the user's home."""

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


def listing_digest(listed: Iterable[Entry]) -> str:
    """A digest that is equal for folders with equal contents."""
    return hashlib.sha256(json.dumps(sorted(listed)).encode()).hexdigest()


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
