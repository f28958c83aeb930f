"""Power cuts: what is being kept, when the power goes, and a disk that loses what is not synced."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from muster.deploy.core.agent.transfers import Blobs
from muster.deploy.core.wire import durable
from muster.deploy.core.wire.durable import read_sealed, write_atomically, write_sealed
from muster.deploy.core.wire.private_folders import identity_of_folder
from muster.deploy.core.wire.store import DamagedError, Store

CONTENTS = [f"print({number})\n".encode() * 1000 for number in range(12)]
OLD, NEW = b"old" * 1000, b"new" * 1000
BLOB = bytes(range(256)) * 100


class Work(NamedTuple):
    """Something that is kept. `check`: fails if a folder, as a crash has left it, gives wrong content.

    It gets whether the power was there until the work was done.
    """

    prepare: Callable[[Path], object]
    act: Callable[[Path], object]
    check: Callable[[Path, bool], None]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _archive(contents: list[bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for content in contents:
            member = tarfile.TarInfo(_digest(content))
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _fill_store(folder: Path) -> None:
    """Many contents are synced at once, few one by one."""
    store = Store(folder / "store")
    store.add(_archive(CONTENTS[:10]))
    store.add(_archive(CONTENTS[10:]))


def _check_store(folder: Path, done: bool) -> None:
    store = Store(folder / "store")
    for path in (folder / "store").glob("??/*"):
        assert _digest(path.read_bytes()) == path.parent.name + path.name, "a name has other bytes"
    digests = [_digest(content) for content in CONTENTS]
    files: list[list[Any]] = [[f"{number}.py", False, one, None] for number, one in enumerate(digests)]
    with contextlib.suppress(DamagedError):
        store.check_out(files, folder / "code")
    for path in (folder / "code").glob("*.py"):
        assert path.read_bytes() == CONTENTS[int(path.stem)]
    lacking = store.missing(digests)
    store.add(_archive([content for content in CONTENTS if _digest(content) in lacking]))
    store.check_out(files, folder / "code")


def _check_record(folder: Path, done: bool) -> None:
    assert (folder / "job.json").read_bytes() in ((NEW,) if done else (OLD, NEW))


def _check_sealed(folder: Path, done: bool) -> None:
    assert read_sealed(folder / "note.json") in (["new"] if done else ["old", "new"])


def _check_word(folder: Path, done: bool) -> None:
    assert re.fullmatch("[0-9a-f]{32}", identity_of_folder(folder / "home"))


def _bring_blob(folder: Path) -> None:
    blobs = Blobs(folder)
    digest = _digest(BLOB)
    have = blobs.intact_size(digest)
    blobs.append(digest, have, BLOB[have:])
    try:
        blobs.complete(digest)
    except ValueError:  # the driver sends it from the beginning then
        blobs.append(digest, 0, BLOB)
        blobs.complete(digest)


def _check_blob(folder: Path, done: bool) -> None:
    _bring_blob(folder)
    assert Blobs(folder).path(_digest(BLOB)).read_bytes() == BLOB


WORKS = {
    "the store": Work(lambda folder: None, _fill_store, _check_store),
    "a record": Work(
        lambda folder: write_atomically(folder / "job.json", OLD),
        lambda folder: write_atomically(folder / "job.json", NEW),
        _check_record,
    ),
    "a sealed note": Work(
        lambda folder: write_sealed(folder / "note.json", "old"),
        lambda folder: write_sealed(folder / "note.json", "new"),
        _check_sealed,
    ),
    "the word of a folder": Work(
        lambda folder: None, lambda folder: identity_of_folder(folder / "home"), _check_word
    ),
    "a file of a push": Work(lambda folder: None, _bring_blob, _check_blob),
}


@contextlib.contextmanager
def watched(event: Callable[[str, Any], None]) -> Iterator[None]:
    """Report each call that syncs or renames, just before it and just after it."""

    def around(name: str, call: Callable[..., None]) -> Callable[..., None]:
        def called(*words: Any, **more: Any) -> None:
            event("before", words[0])
            call(*words, **more)
            event(name, words[0])

        return called

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((os, "fsync"), (os, "replace"), (os, "link"), (durable, "sync_file_system")):
            patch.setattr(module, name, around(name, getattr(module, name)))
        yield


class Disk:
    """What a disk has of a folder: the bytes and the names that were synced, or more of either."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, tuple[int, bool]]] = {}
        self.sync_all()

    def sync_all(self) -> None:
        """Everything reaches the disk."""
        for place, _, names in os.walk(self._folder):
            self.sync(Path(place))
            for name in names:
                self.sync(Path(place, name))

    def sync(self, path: Path) -> None:
        """A file or the names in a folder reach the disk."""
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            self._names[status.st_ino] = _names_in(path)
        else:
            self._bytes[status.st_ino] = path.read_bytes()

    def forget_unused(self) -> None:
        """Forget files that are gone: their numbers are given to others."""
        used = {path.stat().st_ino for path in self._folder.rglob("*")}
        used |= {number for names in self._names.values() for number, _ in names.values()}
        self._bytes = {number: content for number, content in self._bytes.items() if number in used}

    def after_crash(self, target: Path, *, names_first: bool, share: float) -> None:
        """Make the folder that is there after a crash.

        `names_first`: every name has reached the disk; else those alone that were synced. `share`: of the
        bytes that were not synced, so many have reached it.
        """
        live = {path.stat().st_ino: path for path in (self._folder, *self._folder.rglob("*"))}

        def listing(number: int) -> dict[str, tuple[int, bool]]:
            if names_first and number in live:
                return _names_in(live[number])
            return {} if names_first else self._names.get(number, {})

        def make(number: int, place: Path) -> None:
            place.mkdir(parents=True)
            for name, (inner, is_folder) in listing(number).items():
                if is_folder:
                    make(inner, place / name)
                else:
                    fresh = live[inner].read_bytes() if inner in live else b""
                    content = self._bytes.get(inner, fresh[: int(len(fresh) * share)])
                    (place / name).write_bytes(content)

        make(self._folder.stat().st_ino, target)


def _names_in(folder: Path) -> dict[str, tuple[int, bool]]:
    """The names in a folder: the number of each, and whether it is a folder."""
    return {one.name: (one.stat().st_ino, one.is_dir(follow_symlinks=False)) for one in os.scandir(folder)}
