"""The files of a folder that git does not describe."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from .ignore import Ignored

# Names of what Muster itself makes: run folders, named by job ids (also drafts of them), and keys.
RUNS, KEYS = "runs", ".muster"
JOB = re.compile(r"\.?[0-9]{8}-[0-9]{6}-[0-9a-f]{4}(\..*)?")
# Folders that are left out of a tree without git.
NEVER = {"__pycache__", "node_modules", RUNS, "venv"}
GITIGNORE = ".gitignore"


def walk(root: Path, *, gitignore: bool = False) -> Iterator[str]:
    """The paths of files and links below a folder, without hidden folders, environments and runs.

    `gitignore`: also without what the `.gitignore` of a folder lists.
    """
    ignored = _Ignored(root) if gitignore else None
    for folder, folders, names in os.walk(root):
        below = "" if folder == str(root) else f"{os.path.relpath(folder, root)}/"
        if ignored:
            ignored.enter(below, GITIGNORE in names)
        folders[:] = [
            name
            for name in folders
            if name not in NEVER
            and not name.startswith(".")
            and not JOB.fullmatch(name)
            and not (ignored and ignored.has(f"{below}{name}/"))
        ]
        links = [name for name in folders if Path(folder, name).is_symlink()]  # os.walk follows none
        for name in names + links:
            if is_file(Path(folder, name)) and not (ignored and ignored.has(f"{below}{name}")):
                yield f"{below}{name}"


def is_file(path: Path) -> bool:
    """Whether a path is a file or a link."""
    return path.is_symlink() or path.is_file()


class _Ignored:
    """What the `.gitignore` files of the folders list that were entered so far, each of its own folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lists: dict[str, Ignored] = {}

    def enter(self, folder: str, has_list: bool) -> None:
        """Read the list of a folder; its name ends with a slash, and is empty for the root."""
        path = self._root / folder / GITIGNORE
        if has_list and path.is_file() and not path.is_symlink():
            self._lists[folder] = Ignored.of_file(path)

    def has(self, name: str) -> bool:
        """Whether the nearest list that says something of a name leaves it out; a folder ends with /."""
        is_folder, name = name.endswith("/"), name.removesuffix("/")
        parents = [str(parent) for parent in PurePosixPath(name).parents]
        for folder in ("" if parent == "." else f"{parent}/" for parent in parents):
            if listed := self._lists.get(folder):
                said = listed.says(name[len(folder) :], is_folder=is_folder)
                if said is not None:
                    return said
        return False
