"""Files that a crash leaves whole, and content that is checked against its SHA-256 before it is used.

After a power cut, a file that was renamed into place can be empty: the name reached the disk before the
bytes. So bytes are synced before the rename, and the folder after it. And each use of content by its SHA-256
compares it: disks lose and change bytes in other ways too. docs/explanation/trust.md lists the kept files,
and how each is verified.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .files import digest as digest_of

ONE_BY_ONE = 8  # files; syncing the file system once is faster for more
# Folders that cannot be synced: on some network file systems, or without the right to read them.
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM}
_SEAL = "sha256"


def keep_if_intact(path: Path, digest: str) -> bool:
    """Whether a file has this SHA-256; anything else at its path is removed, so that it is fetched again."""
    seen = _identity(path)
    with contextlib.suppress(OSError):  # it is missing, or cannot be read
        if digest_of(path) == digest:
            return True
    _remove_seen(path, seen)
    return False


def read_intact(path: Path, digest: str) -> bytes | None:
    """The bytes of a file that has this SHA-256; None for anything else, which is removed."""
    seen = _identity(path)
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() == digest:
            return content
    except OSError:  # missing, a folder, or a disk that cannot read it
        pass
    _remove_seen(path, seen)
    return None


def _identity(path: Path) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        return status.st_dev, status.st_ino, status.st_mtime_ns
    return None


def _remove_seen(path: Path, seen: tuple[int, int, int] | None) -> None:
    """Remove the entry that was seen at a path, but not a newer one of a host with the same home."""
    if seen is not None and _identity(path) == seen:
        remove(path)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it exists."""
    try:
        path.unlink()
    except FileNotFoundError:
        pass
    except OSError:
        if path.is_symlink() or not path.is_dir():
            raise
        shutil.rmtree(path)


def write_atomically(path: Path, content: bytes, mode: int = 0o600, *, durable: bool = True) -> None:
    """Write a new file and rename it: readers see all or nothing, also in a folder that hosts share.

    `durable`: also after a crash. Files that live only as long as the job's processes do not need that.
    OSError names the file.
    """
    draft = os.path.join(os.path.dirname(path), f".{secrets.token_hex(8)}.new")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fchmod(descriptor, mode)
                if durable:
                    os.fsync(descriptor)
            os.replace(draft, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
        if durable:
            sync_folder(os.path.dirname(path))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def sync(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Write the bytes of these files to the disk. The files are on one file system."""
    files = [*paths]
    if len(files) > ONE_BY_ONE:
        sync_file_system(files[0])
        return
    for path in files:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_file_system(path: str | os.PathLike[str]) -> None:
    """Write everything of the file system with this path to its disk (syncfs(2)).

    os.sync() would wait for all file systems, also for a network file system that hangs.
    """
    import ctypes

    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fspath(path))
    finally:
        os.close(descriptor)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def write_sealed(path: Path, value: object) -> None:
    """Keep a value as JSON with its SHA-256, for `read_sealed`."""
    text = json.dumps(value, sort_keys=True)
    seal = hashlib.sha256(text.encode()).hexdigest()
    if path.is_dir():
        remove(path)
    write_atomically(path, json.dumps({_SEAL: seal, "value": value}, sort_keys=True).encode())


def read_sealed(path: Path) -> Any:
    """A value that `write_sealed` has kept; None if it is missing, damaged, or from another version."""
    try:
        kept = json.loads(path.read_bytes())
        text = json.dumps(kept["value"], sort_keys=True)
        return kept["value"] if hashlib.sha256(text.encode()).hexdigest() == kept[_SEAL] else None
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
