"""Which files git says belong to a work tree: its own, those of its submodules, of repositories inside it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UsageError

# They name the outer repository, and would be obeyed inside of another repository too.
_OF_ONE_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


@dataclass(frozen=True)
class GitFiles:
    """Paths below the root of a work tree. Some may not exist: what git tracks may be deleted by now."""

    tracked: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    """Files that git neither tracks nor ignores."""
    absent: set[str] = field(default_factory=set)
    """Submodules that are not checked out."""


def git_root(place: Path) -> Path | None:
    """The work tree that `place` is in; None if there is no repository here."""
    here = place.resolve()
    if "GIT_DIR" not in os.environ and not any(
        (folder / ".git").exists() for folder in (here, *here.parents)
    ):
        return None
    return Path(os.fsdecode(_git(place, "rev-parse", "--show-toplevel")).rstrip("\n"))


def git_files(root: Path, *, inside: bool = False) -> GitFiles:
    """The files of a work tree. `inside`: it lies in another work tree, and its repository is its own."""
    tracked = {*_names(_git(root, "ls-files", "--cached", "-z", inside=inside))}
    others = {*_names(_git(root, "ls-files", "--others", "--exclude-standard", "-z", inside=inside))}
    found = GitFiles()
    for names, files in ((tracked, found.tracked), (others, found.others)):
        for name in names:
            path = root / name
            if path.is_symlink() or not path.is_dir():
                files.add(name)
            elif (path / ".git").exists():
                if names is tracked or not _is_second_work_tree(path):
                    _add(found, name.rstrip("/"), git_files(path, inside=True))
            else:
                found.absent.add(name)
    return found


def _add(found: GitFiles, folder: str, inner: GitFiles) -> None:
    found.tracked.update(f"{folder}/{name}" for name in inner.tracked)
    found.others.update(f"{folder}/{name}" for name in inner.others)
    found.absent.update(f"{folder}/{name}" for name in inner.absent)


def _is_second_work_tree(path: Path) -> bool:
    """Whether `git worktree add` made a folder: another state of a repository, not a part of this one."""
    try:
        return "/worktrees/" in (path / ".git").read_text(errors="replace")
    except OSError:  # a folder: a repository of its own
        return False


def _names(listed: bytes) -> Iterator[str]:
    return (os.fsdecode(name) for name in listed.split(b"\0") if name)


def _git(place: Path, *arguments: str, inside: bool = False) -> bytes:
    env = {name: value for name, value in os.environ.items() if not (inside and name in _OF_ONE_REPOSITORY)}
    try:
        done = subprocess.run(
            ["git", "-C", str(place), *arguments], capture_output=True, check=False, env=env
        )
    except OSError as error:
        text, status = f"git: {error.strerror}", 1
    else:
        text, status = done.stderr.decode(errors="replace").strip(), done.returncode
    if status:
        raise UsageError(
            f"{place} is in a git repository, and git has to say which files belong to it, but fails:\n{text}"
        )
    return done.stdout
