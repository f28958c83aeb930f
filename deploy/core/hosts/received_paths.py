"""The one check of paths that a host names and that become files on this machine.

A git repository names commands, and git runs them: a `.git` from a host would let the host run a command here
as soon as git runs in that folder. So no part of a path may be `.git`, nor a spelling that a file
system resolves to it: `.GIT`; on NTFS `git~1`, `.git.` and `.git::$INDEX_ALLOCATION`; on HFS+ `.git` with
invisible characters in it. git itself refuses the same (is_hfs_dotgit and is_ntfs_dotgit in its source).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import PurePosixPath

from ..errors import MusterError

REMEDY = (
    "git runs the commands that a repository names, so none is brought from a host; bring it as one file: "
    "muster run -- tar cf NAME.tar FOLDER, then muster get NAME.tar"
)
_SHORT_NAME = re.compile(r"git~\d+")
_BARE = {"head", "objects", "refs"}
"""The entries by which git recognizes a repository without `.git`."""


def is_dot_git(name: str) -> bool:
    """Whether a file system may resolve a name to `.git`."""
    visible = "".join(letter for letter in name if unicodedata.category(letter) != "Cf")
    plain = unicodedata.normalize("NFKC", visible).casefold()
    plain = plain.partition(":")[0].rstrip(". ")
    return plain == ".git" or _SHORT_NAME.fullmatch(plain) is not None


def inner_path(path: str, host: str = "") -> PurePosixPath:
    """A path inside the target folder; `MusterError` if it leads out of it or into a git repository."""
    inner = PurePosixPath(path)
    if not inner.parts or inner.is_absolute() or ".." in inner.parts or "\0" in path:
        raise MusterError(f"{path!r:.200} is not a path inside the requested folder", host=host)
    if any(is_dot_git(name) for name in re.split(r"[/\\]", path)):
        raise MusterError(f"{path!r:.200} belongs to a git repository; {REMEDY}", host=host)
    return inner


def inner_paths(paths: Iterable[str], host: str = "") -> None:
    """The same for all paths of a folder, which must not be a repository without `.git` either."""
    found: dict[str, set[str]] = {}
    for path in paths:
        folder, names = "", inner_path(path, host).parts
        for name in names:
            if (plain := name.casefold()) in _BARE:
                found.setdefault(folder, set()).add(plain)
            folder += f"{plain}/"
    if bare := [folder for folder, names in found.items() if names == _BARE]:
        raise MusterError(f"{min(bare) or '.'!r:.200} is a git repository; {REMEDY}", host=host)
