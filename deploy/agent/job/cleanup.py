"""Removes what jobs that are over have left on this host."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from pathlib import Path

from ...common.frames import Frame
from ...common.paths import JobPaths, MusterPaths
from ...common.store import held_by_nobody

# A younger file of the store may belong to a launch that has not registered its list of files yet.
FRESH_SECONDS = 3600.0


class Cleaning:
    """Removes folders of jobs, and contents of the store that no job's code is made of."""

    def __init__(self, home: Path) -> None:
        self._paths = MusterPaths(str(home))

    def do_clean(self, request: Frame, payload: bytes) -> Frame:
        """Remove jobs that nobody holds and nothing was written to for so many seconds."""
        before = time.time() - request["older"]
        folders = _folders(Path(self._paths.jobs))
        gone = Path(self._paths.root, "gone")
        sizes = {folder.name: _remove(folder, before, gone) for folder in folders}
        removed = {name: size for name, size in sizes.items() if size is not None}
        shutil.rmtree(gone, ignore_errors=True)  # what an earlier removal left that was cut short, too
        return {
            "removed": list(removed),
            "kept": [folder.name for folder in folders if folder.name not in removed and folder.exists()],
            "freed": sum(removed.values()) + self._clean_store(before),
        }

    def _clean_store(self, before: float) -> int:
        """Remove what no job is made of any more; returns its bytes."""
        used = {digest for folder in _folders(Path(self._paths.jobs)) for digest in _digests(folder)}
        freed = 0
        for path in sorted(Path(self._paths.store).glob("??/*")):
            with contextlib.suppress(OSError):
                status = path.stat()
                fresh = status.st_mtime > min(before, time.time() - FRESH_SECONDS)
                if path.parent.name + path.name not in used and not fresh:
                    path.unlink()
                    freed += status.st_size
        return freed


def _remove(folder: Path, before: float, gone: Path) -> int | None:
    """Remove the folder of a job; returns its bytes, or None for one in use, too new or not ours.

    Hosts that share a home do this at once: the folder goes by one rename, which one of them makes.
    """
    with contextlib.suppress(OSError), held_by_nobody(folder):
        if _newest(folder) <= before:
            size = _size(folder)
            _rename_into(gone, folder)
            shutil.rmtree(gone / folder.name, ignore_errors=True)
            return size
    return None


def _rename_into(gone: Path, folder: Path) -> None:
    """Move the folder there, again if a host that is done has removed `gone` in between."""
    for _ in range(100):
        with contextlib.suppress(FileExistsError):
            os.mkdir(gone, 0o700)
        with contextlib.suppress(FileNotFoundError):
            folder.rename(gone / folder.name)
            return
    raise FileNotFoundError(folder)


def _folders(jobs: Path) -> list[Path]:
    return sorted(path for path in jobs.iterdir() if path.is_dir()) if jobs.is_dir() else []


def _digests(folder: Path) -> set[str]:
    with contextlib.suppress(OSError, ValueError):
        return {digest for _, _, digest, _ in json.loads(Path(JobPaths(str(folder)).code_list).read_text())}
    return set()


def _newest(folder: Path) -> float:
    """When something of a job was last written: folders change with what is in them, logs with each line."""
    paths = JobPaths(str(folder))
    logs = [*Path(paths.logs).glob("*"), *Path(paths.run, "logs").glob("*")]
    places = [folder, Path(paths.run), Path(paths.out), *logs]
    return max(path.stat().st_mtime for path in places if path == folder or path.exists())


def _size(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(folder) for name in names
    )
