"""The folders of environments on this host, under ~/.muster/envs: which are complete, in use, or to go.

An environment is a folder named after its lock's digest. It is valid only with the record `muster.json`,
which appears by a rename after everything else: a half-made environment is never used. A lock beside the
folder is exclusive for a process that makes or removes it, and shared by all jobs that use it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ....core.wire.durable import read_sealed
from ....core.wire.files import newest_in

ENVS = "envs"
"""Their folder in ~/.muster."""
RECORD = "muster.json"
KEY = re.compile(r"[0-9a-f]{20}")
MOST = 1024
FRESH_SECONDS = 3600.0


def folders_in(root: Path) -> list[Path]:
    """The folders of all environments, also of those that are not complete."""
    return sorted(path for path in root.glob("*") if KEY.fullmatch(path.name))


def record(folder: Path) -> dict[str, Any] | None:
    """The record of an environment; None if it is not complete, or its Python is gone."""
    try:
        kept: dict[str, Any] = read_sealed(folder / RECORD)
        os.stat(kept["executable"])  # follows the link to the Python that it was made with
        return {**kept, "used": os.stat(folder).st_mtime}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def complete_in(root: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The newest of the complete environments, with their records."""
    for folder in sorted(folders_in(root), key=lambda path: path.stat().st_mtime, reverse=True)[:MOST]:
        if kept := record(folder):
            yield folder.name, kept


def lock(root: Path, key: str, kind: int) -> int:
    """Take the lock of an environment; OSError if `kind` has LOCK_NB and another process holds it."""
    descriptor = os.open(root / f"{key}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, kind)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def hold(muster_root: Path, key: str) -> int:
    """Note that a job uses an environment; returns the descriptor that holds its lock."""
    root = muster_root / ENVS
    descriptor = lock(root, key, fcntl.LOCK_SH)
    if record(root / key) is None:
        os.close(descriptor)
        raise FileNotFoundError(f"the environment {key} was removed in between; launch again")
    os.utime(root / key)
    return descriptor


def remove(root: Path, key: str) -> int | None:
    """Remove an environment; returns its bytes, or None if it is in use or missing."""
    folder = root / key
    try:
        held = lock(root, key, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return None
    try:
        if not folder.is_dir():
            return None
        size = size_of(folder)
        with contextlib.suppress(FileNotFoundError):
            (folder / RECORD).unlink()  # from here on it is not valid
        shutil.rmtree(folder)
        return size
    finally:
        os.close(held)


def remove_wheels(muster_root: Path) -> int:
    """Remove the cache and the wheels of environments, unless a launch may be bringing some just now."""
    freed = 0
    for folder in (muster_root / ENVS / "cache", muster_root / "wheels"):
        if newest_in(folder) <= time.time() - FRESH_SECONDS:
            freed += size_of(folder)
            shutil.rmtree(folder, ignore_errors=True)
    return freed


def size_of(folder: Path) -> int:
    """The bytes of the files below a folder; a file with several names counts once."""
    seen: dict[tuple[int, int], int] = {}
    for inner, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(inner, name))
                seen[status.st_dev, status.st_ino] = status.st_size
    return sum(seen.values())
