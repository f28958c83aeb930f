"""The one check of files that can run a command on this machine: only their user may write to them.

docs/explanation/trust.md lists these files.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import UsageError
from ..wire.job_folders import is_run
from ..wire.users import name_of

MOST_NAMED = 10


def search_path(folder: Path) -> list[Path]:
    """A folder and its parents, the nearest first, in which a command looks for files that it is not told of.

    Hosts have written the folder of a run, so it and all folders in it are left out.
    """
    try:
        found = [folder, *folder.absolute().parents]
    except OSError:  # this folder was removed
        return [folder]
    return found[max((place for place, each in enumerate(found, 1) if is_run(each)), default=0) :]


def require_own(paths: Iterable[Path], why: str) -> None:
    """`UsageError` for files and folders that another user owns or can write to. Absent ones pass.

    `why`: the danger of a file that another user wrote.
    """
    problems = [problem for path in paths if path.exists() for problem in _open_to_others(path, why)]
    if problems:
        more = [f"and {len(problems) - MOST_NAMED} more"] if len(problems) > MOST_NAMED else []
        raise UsageError("\n".join(problems[:MOST_NAMED] + more))


def within(path: Path) -> Iterator[Path]:
    """A file; or a folder and everything in it."""
    yield path
    for folder, folders, names in os.walk(path):
        yield from (Path(folder, name) for name in folders + names)


def _open_to_others(path: Path, why: str) -> Iterator[str]:
    """The other users who may write to a file or folder, and the remedy."""
    quoted, user, status = shlex.quote(str(path)), os.geteuid(), path.stat()
    if others := {path.lstat().st_uid, status.st_uid} - {user, 0}:
        names = ", ".join(name_of(other) for other in others)
        yield f"{path}: belongs to {names}, and {why}; read it, then: sudo chown -h {name_of(user)} {quoted}"
    if status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not is_private(status.st_gid)):
        yield f"{path}: others may write to it, and {why}; do: chmod go-w {quoted}"


def is_private(group: int) -> bool:
    """Whether a group is this user's alone: systems that make one for each user let it write to new files."""
    try:
        user, entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and entry.gr_name == user.pw_name and not {*entry.gr_mem} - {user.pw_name}
