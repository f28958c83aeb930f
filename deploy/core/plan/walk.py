"""The files of a folder that git does not describe."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError
from .ignore import IgnoreFiles

# Names of Muster's own files: run folders, named by job ids (also drafts of them), and keys.
RUNS, KEYS = "runs", ".muster"
JOB = re.compile(r"\.?[0-9]{8}-[0-9]{6}-[0-9a-f]{4}(\..*)?")
# Folders that are left out of a tree without git.
MOST_FOLDERS = 50_000
NEVER = {"__pycache__", "node_modules", RUNS, "venv"}
GITIGNORE = ".gitignore"


def walk(root: Path, *, gitignore: bool = False, leave_out: IgnoreFiles | None = None) -> Iterator[str]:
    """The paths of files and links below a folder, without hidden folders, environments and runs.

    `gitignore`: also without the files that a `.gitignore` lists. `leave_out`: other files to leave out.
    """
    ignored = [leave_out] if leave_out else []
    ignored += [IgnoreFiles(root, GITIGNORE, follow_links=False)] if gitignore else []
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
        for entry in entries:
            name, is_link, is_folder = f"{below}{entry.name}", entry.is_symlink(), _is_folder(entry)
            if is_folder and _is_skipped(entry.name):
                continue
            if any(files.has(name, is_folder=is_folder) for files in ignored):
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
