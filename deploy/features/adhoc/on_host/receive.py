"""Files and folders that `fab put` brings to this host: in parts, checked, renamed into place when complete.

The draft of an interrupted put stays beside its target; the next put of the same content resumes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from typing import NamedTuple

from ....core.wire.files import Entry, digest, path_of
from ....core.wire.frames import Frame
from ..wire import append, complete, entries, listing_digest

KEPT_FROM = 1 << 22  # bytes; fewer are quickly sent again
OLD_SECONDS = 7 * 86400.0  # of unfinished puts
DRAFTS = ".muster-put-"  # without the name of the file, which may be as long as a name can be


class _Draft(NamedTuple):
    """The target of a draft, and the descriptor that holds its lock, None without one."""

    target: str
    lock: int | None = None
    whole: bool = False
    """The target already has the content."""


class Receiver:
    """The files and folders that are being received. A relative path begins at the user's home."""

    def __init__(self) -> None:
        self._drafts: dict[str, _Draft] = {}

    def do_put_begin(self, request: Frame, payload: bytes) -> Frame:
        """Begin to receive a file or a folder, beside its target; in an existing folder it keeps its name.

        Answers how many of its bytes are present: all of them if the target has this content.
        """
        target = path_of(request["path"])
        if request["path"].endswith("/") or os.path.isdir(target):
            target = os.path.join(target, request["name"])
        if _is_present(target, request):
            self._drafts[target] = _Draft(target, whole=True)
            return {"draft": target, "have": request["length"]}
        if request["folder"] and os.path.lexists(target):
            raise ValueError(f"{target} exists; remove it, or give another folder")
        beside = os.path.dirname(target)
        os.makedirs(beside, exist_ok=True)
        _sweep(beside)
        draft = os.path.join(beside, f"{DRAFTS}{request['digest'][:20]}.part")
        if (lock := _claimed(draft, folder=request["folder"])) is None:
            draft = _new(beside, folder=request["folder"])
        self._drafts[draft] = _Draft(target, lock)
        return {"draft": draft, "have": _size(draft)}

    def do_put_write(self, request: Frame, payload: bytes) -> Frame:
        """Append the next part of a file, or of a file in a folder."""
        draft = self._drafts.get(request["draft"])
        if draft is None or draft.whole:
            raise ValueError("no such draft")
        try:
            append(request["draft"], request.get("path", ""), payload)
        except OSError:
            self._discard(request["draft"])  # the disk may be full
            raise
        return {}

    def do_put_check(self, request: Frame, payload: bytes) -> Frame:
        """Check that everything has arrived undamaged; in a folder, make the folders and links now."""
        path = request["draft"]
        try:
            is_whole = self._drafts[path].whole
            if not is_whole and "entries" in request:
                complete(path, (Entry(*entry) for entry in request["entries"]))
            elif not is_whole and digest(path) != request["digest"]:
                raise OSError("damaged on the way; try again")
            os.chmod(path, request["mode"])
        except (OSError, ValueError):
            self._discard(path)
            raise
        return {}

    def do_put_place(self, request: Frame, payload: bytes) -> Frame:
        """Put the draft into place at once: others see either the old content or the new."""
        path = request["draft"]
        draft = self._drafts[path]
        try:
            if not draft.whole:
                os.replace(path, draft.target)
        except OSError:  # a host with the same home may have put the same folder there just now
            content = _content(path, folder=True)
            if not content or content != _content(draft.target, folder=True):
                raise
            self._discard(path)
        else:
            self._release(path)
        return {}

    def close(self) -> None:
        """Remove the drafts, except large ones, which the next put can resume."""
        for path, draft in list(self._drafts.items()):
            if draft.lock is not None and _size(path) >= KEPT_FROM:
                self._release(path)
            else:
                self._discard(path)

    def _release(self, path: str) -> _Draft:
        draft = self._drafts.pop(path)
        if draft.lock is not None:
            os.close(draft.lock)
        return draft

    def _discard(self, path: str) -> None:
        if not self._release(path).whole:
            _remove(path)


def _is_present(target: str, request: Frame) -> bool:
    """Whether the target has the content already. Sizes are compared first."""
    kind = os.path.isdir(target) if request["folder"] else os.path.isfile(target)
    if not kind or os.path.islink(target) or _size(target) != request["length"]:
        return False
    return _content(target, folder=request["folder"]) == str(request["digest"])


def _content(path: str, *, folder: bool) -> str:
    """The digest of a file or folder; empty for one that cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return listing_digest(entries(path)) if folder else digest(path)
    return ""


def _claimed(path: str, *, folder: bool) -> int | None:
    """Make or open a draft, and lock it; None if another put has it, or another user may write to it."""
    flags = os.O_RDONLY | os.O_DIRECTORY if folder else os.O_RDWR | os.O_CREAT
    try:
        if folder:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        status = os.fstat(descriptor)
        kind = (
            stat.S_ISDIR(status.st_mode) if folder else stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        )
        if kind and status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    os.close(descriptor)
    return None


def _new(beside: str, *, folder: bool) -> str:
    if folder:
        return tempfile.mkdtemp(prefix=DRAFTS, dir=beside)
    descriptor, draft = tempfile.mkstemp(prefix=DRAFTS, dir=beside)
    os.close(descriptor)
    return draft


def _size(path: str) -> int:
    """The bytes of a file, or of all files in a folder; of a draft, those received so far."""
    if not os.path.isdir(path):
        return os.lstat(path).st_size
    found = (os.lstat(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)
    return sum(status.st_size for status in found if stat.S_ISREG(status.st_mode))


def _sweep(folder: str) -> None:
    """Remove drafts that no put has resumed for OLD_SECONDS."""
    draft = re.compile(rf"{re.escape(DRAFTS)}[0-9a-f]{{20}}\.part")
    with contextlib.suppress(OSError), os.scandir(folder) as listing:
        for entry in listing:
            if draft.fullmatch(entry.name):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.geteuid() and time.time() - status.st_mtime > OLD_SECONDS:
                    _remove(entry.path)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(path)
