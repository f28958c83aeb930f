"""The files of a folder that git does not describe."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ..errors import UsageError
from .ignore import Ignored

# Names of Muster's own files: run folders, named by job ids (also drafts of them), and keys.
RUNS, KEYS = "runs", ".muster"
JOB = re.compile(r"\.?[0-9]{8}-[0-9]{6}-[0-9a-f]{4}(\..*)?")
# Folders that are left out of a tree without git.
MOST_FOLDERS = 50_000
NEVER = {"__pycache__", "node_modules", RUNS, "venv"}
GITIGNORE = ".gitignore"


def walk(root: Path, *, gitignore: bool = False, leave_out: Ignored | None = None) -> Iterator[str]:
    """The paths of files and links below a folder, without hidden folders, environments and runs.

    `gitignore`: also without the files that a `.gitignore` lists. `leave_out`: folders to skip.
    """
    ignored = _Ignored(root) if gitignore else None
    waiting = [""]
    entered = 0
    while waiting:
        below = waiting.pop()
        entered += 1
        if entered > MOST_FOLDERS:
            raise UsageError(
                f"{root} holds more than {MOST_FOLDERS} folders; start in the folder of your project"
            )
        try:
            with os.scandir(root / below) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError:
            continue  # an unreadable folder holds no code
        if ignored:
            ignored.enter(below, any(entry.name == GITIGNORE for entry in entries))
        for entry in entries:
            name, is_link, is_folder = f"{below}{entry.name}", entry.is_symlink(), _is_folder(entry)
            if is_folder and (
                _is_skipped(entry.name) or (leave_out and leave_out.decides(name, is_folder=True))
            ):
                continue
            if ignored and ignored.has(f"{name}/" if is_folder else name):
                continue
            if is_folder and not is_link:
                waiting.append(f"{name}/")
            elif is_link or entry.is_file():
                yield name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself
        return False


def _is_skipped(folder: str) -> bool:
    return folder in NEVER or folder.startswith(".") or JOB.fullmatch(folder) is not None


def is_file(path: Path) -> bool:
    """Whether a path is a file or a link."""
    return path.is_symlink() or path.is_file()


class _Ignored:
    """The `.gitignore` files of the folders so far."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lists: dict[str, Ignored] = {}

    def enter(self, folder: str, has_list: bool) -> None:
        """Read the list of a folder. The name of a folder ends with a slash, and is empty for the root."""
        path = self._root / folder / GITIGNORE
        if has_list and path.is_file() and not path.is_symlink():
            self._lists[folder] = Ignored.of_file(path)

    def has(self, name: str) -> bool:
        """Whether the nearest list with a pattern for a name ignores it; the name of a folder ends with /."""
        is_folder, name = name.endswith("/"), name.removesuffix("/")
        parents = [str(parent) for parent in PurePosixPath(name).parents]
        for folder in ("" if parent == "." else f"{parent}/" for parent in parents):
            if listed := self._lists.get(folder):
                decision = listed.decides(name[len(folder) :], is_folder=is_folder)
                if decision is not None:
                    return decision
        return False
