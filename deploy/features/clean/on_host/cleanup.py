"""Removes the files of finished jobs from this host."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from ....core.wire.frames import Frame
from ....core.wire.paths import JobPaths, MusterPaths
from ....core.wire.store import DRAFTS, every_lock_held
from ....core.wire.written import Search, counted
from .left_memory import left_in_memory

# A younger file of the store may belong to a launch that has not registered its list of files yet.
FRESH_SECONDS = 3600.0


class Cleaning:
    """Removes folders of jobs, and contents of the store that no job's code uses."""

    def __init__(self, muster_root: Path) -> None:
        self._paths = MusterPaths(str(muster_root))

    def do_clean(self, request: Frame, payload: bytes) -> Frame:
        """Remove jobs that no agent or driver holds, and that were not written to for `older` seconds.

        The files that their programs wrote stay, and are counted, unless `results` is true. So does what
        programs left in memory.
        """
        before = time.time() - request["older"]
        folders = _folders(Path(self._paths.jobs))
        gone = Path(self._paths.root, "gone")
        ends = {folder.name: _remove(folder, before, gone, request["results"]) for folder in folders}
        results = {name: end.results for name, end in ends.items() if end and end.results}
        removed = [name for name, end in ends.items() if end and not end.results]
        shutil.rmtree(gone, ignore_errors=True)  # with the rest of an interrupted removal
        return {
            "removed": removed,
            "kept": [folder.name for folder in folders if folder.name not in removed and folder.exists()],
            "results": [{"job": name, "files": files} for name, files in results.items()],
            "memory": left_in_memory(),
            "freed": sum(end.freed for end in ends.values() if end) + self._clean_store(before),
        }

    def _clean_store(self, before: float) -> int:
        """Remove contents that no job's code uses any more; returns their bytes."""
        used = {digest for folder in _folders(Path(self._paths.jobs)) for digest in _digests(folder)}
        freed = 0
        store = Path(self._paths.store)
        for path in sorted([*store.glob("??/*"), *store.glob(f"{DRAFTS}*/*")]):
            with contextlib.suppress(OSError):
                status = path.stat()
                fresh = status.st_mtime > min(before, time.time() - FRESH_SECONDS)
                if path.parent.name + path.name not in used and not fresh:
                    path.unlink()
                    freed += status.st_size
        for folder in store.glob(f"{DRAFTS}*"):
            with contextlib.suppress(OSError):  # a launch fills it just now
                if folder.stat().st_mtime < time.time() - FRESH_SECONDS:
                    folder.rmdir()
        return freed


class _End(NamedTuple):
    """The bytes that were removed of a job, and what is left of it: the files that its program wrote."""

    freed: int
    results: Frame | None = None


def _remove(folder: Path, before: float, gone: Path, with_results: bool) -> _End | None:
    """Remove the folder of a job, or all but its results; None for a job in use, too new or not ours.

    Hosts that share a home do this at the same time: only one of them succeeds in renaming the folder.
    """
    with contextlib.suppress(OSError), every_lock_held(folder):
        if _newest(folder) <= before:
            search = Search(str(folder))
            written = () if with_results else (*search.beside_code(), *search.out())
            sizes = _fetched(folder)
            inside = (file for file in written if not os.path.isabs(file.target))
            found = [file for file in inside if file.size != sizes.get(file.path)]
            if found:
                return _End(_strip(folder, {file.path for file in found}), counted(found, search))
            size = _size(folder)
            _rename_into(gone, folder)
            shutil.rmtree(gone / folder.name, ignore_errors=True)
            return _End(size)
    return None


def _fetched(folder: Path) -> dict[str, int]:
    """The sizes of the output files that the driver has: it has not all of one that grew."""
    sizes: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError, TypeError):
        for path in folder.glob("fetched.*.json"):
            sizes |= json.loads(path.read_text())
    return sizes


def _strip(folder: Path, results: set[str]) -> int:
    """Remove the code, the programs and the logs of a job, but no result; returns their bytes."""
    paths, before, status = JobPaths(str(folder)), _size(folder), folder.stat()
    for part in (paths.library, paths.programs, paths.driver, paths.logs):
        shutil.rmtree(part, ignore_errors=True)
    for parent, folders, names in () if os.path.islink(paths.code) else os.walk(paths.code, topdown=False):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for path in (os.path.join(parent, name) for name in names + links):
            if os.path.relpath(path, folder) not in results:
                os.unlink(path)
        with contextlib.suppress(OSError):  # a result is in it
            os.rmdir(parent)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(paths.code_list)  # what is left in the code are results
    os.utime(folder, ns=(status.st_atime_ns, status.st_mtime_ns))  # it is as old as before
    return before - _size(folder)


def _rename_into(gone: Path, folder: Path) -> None:
    """Move the folder into `gone`; try again if another host has removed `gone` in between."""
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
    """The last write of a job: a folder's time changes with its entries, a log's with each line."""
    written = [path for part in ("run", "out", "logs/*", "run/logs/*") for path in folder.glob(part)]
    return max(path.stat().st_mtime for path in (folder, *written))


def _size(folder: Path) -> int:
    return sum(
        os.lstat(os.path.join(path, name)).st_size for path, _, names in os.walk(folder) for name in names
    )
