"""The files that the program of a job wrote into the job's folder: beside the code, and into $MUSTER_OUT.

They are found by comparison with what was sent: by names, and by the times of the last change (ctime), which
a program cannot set. For a verdict the search has limits in files, depth and time: a program may have written
anything.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from .frames import Frame
from .paths import JobPaths

# Folders and files beside the code that Python and tools make by themselves, and that are no results.
CACHES = {
    "__pycache__",
    ".cache",
    ".git",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
}
COMPILED = (".pyc", ".pyo")
MOST_FILES, MOST_ENTRIES, MOST_DEPTH, MOST_SECONDS = 10_000, 250_000, 32, 1.5
NO_LIMITS = (math.inf, math.inf, math.inf)


class WrittenFile(NamedTuple):
    """A file or link, by its path in the job's folder: `code/checkpoints/last.pt`, `out/model.pt`."""

    path: str
    size: int
    target: str = ""
    """Of a link: a path in the job's folder, or an absolute one if the link leaves it."""


class Search:
    """Finds the files of a job's folder, at or below a path `inner` of the program.

    `is_cut`: with limits, it stopped at one, so there may be more.
    """

    def __init__(self, folder: str, inner: str = "", *, has_limits: bool = False) -> None:
        self._limits = (
            (MOST_ENTRIES, MOST_DEPTH, time.monotonic() + MOST_SECONDS) if has_limits else NO_LIMITS
        )
        self._paths, self._inner, self._seen = JobPaths(folder), inner and f"{inner}/", 0
        self.is_cut = False

    def beside_code(self) -> Iterator[WrittenFile]:
        """The files and links in the copy of the code that were not sent, or were written to since."""
        sent, since = self._sent()
        caches = CACHES - {name for path in sent for name in path.split("/")}
        for file, status in self._files(self._paths.code, caches):
            is_new = file.path.partition("/")[2] not in sent and not file.target  # --keep makes links too
            if (status.st_ctime_ns > since or is_new) and not file.path.endswith(COMPILED):
                yield file

    def out(self) -> Iterator[WrittenFile]:
        """The files and links in $MUSTER_OUT."""
        return (file for file, _ in self._files(self._paths.out, {".git"}))

    def _sent(self) -> tuple[set[str], int]:
        """The files that were sent, and when they were in place.

        Without their list, `sweep_old_jobs` (store.py) has removed those that were not changed.
        """
        with contextlib.suppress(OSError, ValueError):
            listed = json.loads(Path(self._paths.code_list).read_text())
            return {name for name, *_ in listed}, os.stat(self._paths.code_list).st_mtime_ns
        return set(), 0

    def _files(self, top: str, caches: set[str]) -> Iterator[tuple[WrittenFile, os.stat_result]]:
        """The regular files and links below a folder, the upper ones first, but not in `caches`."""
        waiting = deque([] if os.path.islink(top) else [(os.path.basename(top), 0)])
        while waiting:
            folder, depth = waiting.popleft()
            for entry in self._entries(folder):
                path = f"{folder}/{entry.name}"
                try:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    status = entry.stat(follow_symlinks=False)
                except OSError:  # it is gone
                    continue
                inner = f"{path.partition('/')[2]}/"
                is_wanted = inner.startswith(self._inner)
                if is_folder and depth == self._limits[1]:
                    self.is_cut = True
                elif is_folder and entry.name not in caches:
                    if is_wanted or self._inner.startswith(inner):
                        waiting.append((path, depth + 1))
                elif is_wanted and stat.S_ISREG(status.st_mode):
                    yield WrittenFile(path, status.st_size), status
                elif is_wanted and stat.S_ISLNK(status.st_mode):
                    target = os.path.realpath(os.path.join(self._paths.folder, path))
                    within = os.path.relpath(target, os.path.realpath(self._paths.folder))
                    is_inside = within.startswith(("code/", "out/"))
                    yield WrittenFile(path, 0, within if is_inside else target), status

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        """The entries of a folder, until a limit is reached."""
        with contextlib.suppress(OSError), os.scandir(os.path.join(self._paths.folder, folder)) as entries:
            for entry in entries:
                self._seen += 1
                if self._seen > self._limits[0] or time.monotonic() > self._limits[2]:
                    self.is_cut = True
                    return
                yield entry


def counted(files: Iterable[WrittenFile], search: Search) -> Frame:
    """The number and the bytes of files, the largest of them, and whether there may be more."""
    inside = (file for file in files if not os.path.isabs(file.target))
    found = [*itertools.islice(inside, MOST_FILES + 1)]
    search.is_cut |= len(found) > MOST_FILES
    found = found[:MOST_FILES]
    largest = max(found, key=lambda file: (file.size, file.path), default=WrittenFile("", 0))
    return {
        "files": len(found),
        "bytes": sum(file.size for file in found),
        "more": search.is_cut,
        "largest": largest.path.partition("/")[2],
    }
