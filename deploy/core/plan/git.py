"""The files and the commit of a work tree by git, with its submodules and the repositories inside it.

Every call of git only reads, and runs nothing that the repository names. A tree may come from elsewhere with
its `.git`, such as an unpacked archive. git would obey the settings in it: `core.fsmonitor` and hooks are
commands, a missing object is fetched by a command of `remote.*` (file and ext transports run one too),
`core.worktree` leads to another folder. `git status` and `git diff` run filters for the content of files, so
a scan compares the contents itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UsageError
from ..hosts.received_paths import is_dot_git
from .walk import KEYS, RUNS, walk

# Given on the command line, they come after every file of settings, and after what such a file includes.
# No setting that these calls read names any other command: filters and textconv belong to the content of
# files.
_HARMLESS = {
    "core.fsmonitor": "",  # empty: git before 2.36 would run a program called `false`
    "core.hooksPath": os.devnull,
    "core.sshCommand": "false",
    "core.askPass": "",
    "core.pager": "cat",
    "credential.helper": "",
    "diff.external": "",
    "protocol.allow": "never",
    "safe.bareRepository": "explicit",
}
_COMMIT = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_LFS = "version https://git-lfs.github.com/spec/v1\n"
MOST_TEXT = 1 << 20
"""Bytes of a file that may be a text with carriage returns."""
SECONDS = 60
MOST_DEPTH = 20  # of submodules
LONGEST_PATH, LONGEST_NAME = 4000, 255  # no file has a longer one
# They point git to another repository than that of the folder.
_OF_ONE_REPOSITORY = {
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
}


def git_root(folder: Path) -> Path | None:
    """The work tree of a folder: it or the nearest parent with a `.git` that is no stranger's; else None."""
    folder = folder.resolve()
    return next((parent for parent in (folder, *folder.parents) if _has_repository(parent)), None)


def _has_repository(folder: Path) -> bool:
    path = folder / ".git"
    with contextlib.suppress(OSError):
        return {path.lstat().st_uid, path.stat().st_uid} <= {0, os.geteuid(), folder.stat().st_uid}
    return False


def git(root: Path, *arguments: str) -> bytes:
    """The output of git for the repository of a work tree; `UsageError` with its message if it fails."""
    settings = [option for name, value in _HARMLESS.items() for option in ("-c", f"{name}={value}")]
    argv = ["git", "-C", str(root), "--no-pager", "--no-optional-locks", *settings, *arguments]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=_environment(root),
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        text, status = f"no answer in {SECONDS} s; a huge folder, a disk that is gone, a FIFO .gitignore?", 1
    except OSError as error:
        text, status = f"git: {error.strerror}", 1
    else:
        text, status = done.stderr.decode(errors="replace").strip(), done.returncode
    # git may list only the readable files, print an error, and end with 0.
    if status or re.search("^(error|fatal):", text, re.MULTILINE):
        raise UsageError(f"{root} is a git repository, but git cannot list its files:\n{text}")
    return done.stdout


def _environment(root: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _OF_ONE_REPOSITORY}
    return kept | {
        "GIT_WORK_TREE": str(root),  # overrides core.worktree
        "GIT_CEILING_DIRECTORIES": str(root.parent),  # do not use the repository of a parent folder
        "GIT_ALLOW_PROTOCOL": "",  # a repository's protocol.NAME.allow is stronger than protocol.allow
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


class Head:
    """The commit of a work tree, found by a thread: a launch lists and reads the files meanwhile."""

    def __init__(self, root: Path) -> None:
        self._commit, self._staged = "", False
        self._thread = threading.Thread(target=self._find, args=(root,), daemon=True)
        self._thread.start()

    def result(self) -> tuple[str, bool]:
        """Its id, and whether the index equals it; the id is empty for a repository without a commit."""
        self._thread.join()
        return self._commit, self._staged

    def _find(self, root: Path) -> None:
        with contextlib.suppress(UsageError):
            commit = git(root, "rev-parse", "--verify", "HEAD^{commit}").decode(errors="replace").strip()
            if _COMMIT.fullmatch(commit):
                self._commit, self._staged = commit, _is_staged(root, commit)


def _is_staged(root: Path, commit: str) -> bool:
    """Whether the index equals a commit; False if the commit is missing. It reads no file of the tree."""
    try:
        git(root, "diff-index", "--cached", "--quiet", "--ignore-submodules=dirty", commit, "--")
    except UsageError:
        return False
    return True


class ContentCheck:
    """Compares a content, part by part, with git's id of it. An empty id is that of no content."""

    def __init__(self, blob: str, size: int) -> None:
        self._blob = blob
        algorithm = hashlib.sha1 if len(blob) == 40 else hashlib.sha256
        self._digest = algorithm(b"blob %d\0" % size, usedforsecurity=False)

    def update(self, part: bytes) -> None:
        if self._blob:
            self._digest.update(part)

    @property
    def is_same(self) -> bool:
        return self._digest.hexdigest() == self._blob


def is_stored_as(blob: str, path: Path, digest: str, size: int) -> bool:
    """Whether git stores a file in another form: without carriage returns, or as a pointer of git-lfs to it.

    `digest`: the SHA-256 of the file.
    """
    forms = [f"{_LFS}oid sha256:{digest}\nsize {size}\n".encode()]
    if size <= MOST_TEXT:
        forms.append(path.read_bytes().replace(b"\r\n", b"\n"))
    for form in forms:
        check = ContentCheck(blob, len(form))
        check.update(form)
        if check.is_same:
            return True
    return False


@dataclass(frozen=True)
class GitFiles:
    """Paths below the root of a work tree. Some may not exist: a tracked file may be deleted."""

    tracked: dict[str, str] = field(default_factory=dict)
    """Each with git's id of its content; empty if that cannot be its content in the commit."""
    others: set[str] = field(default_factory=set)
    """Files that git neither tracks nor ignores."""
    absent: set[str] = field(default_factory=set)
    """Submodules that are not checked out."""


def git_files(root: Path, depth: int = 0) -> GitFiles:
    """The files of a work tree and of its submodules, as git lists them.

    Another repository in the tree may come from anywhere. It is read without git, by its `.gitignore`.
    """
    if depth > MOST_DEPTH:
        raise UsageError(f"{root}: repositories inside of each other, more than {MOST_DEPTH} levels")
    files, index = GitFiles(), dict(_entries(git(root, "ls-files", "--stage", "-z")))
    for name in _inside(root, index):
        path = root / name
        if path.is_symlink() or not path.is_dir():
            files.tracked[name] = index[name]
        elif (path / ".git").exists():
            _add(files, name, git_files(path, depth + 1), same=_is_staged(path, index[name]))
        else:
            files.absent.add(name)
    for name in _inside(root, _names(git(root, "ls-files", "--others", "--exclude-standard", "-z"))):
        path = root / name
        if path.is_symlink() or not path.is_dir():
            files.others.add(name)
        elif not {RUNS, KEYS} & {*name.split("/")} and not _is_second_work_tree(path):
            files.others.update(f"{name}/{inner}" for inner in walk(path, gitignore=True))
    return files


def _entries(listed: bytes) -> Iterator[tuple[str, str]]:
    """Each path of an index: `100644 c8f2... 0<tab>train.py`; without the id during a merge."""
    for entry in filter(None, listed.split(b"\0")):
        about, _, name = entry.partition(b"\t")
        _, blob, stage = about.decode().split(" ")
        yield os.fsdecode(name).rstrip("/"), blob if stage == "0" else ""


def _add(files: GitFiles, folder: str, inner: GitFiles, *, same: bool) -> None:
    """Add the files of a submodule. `same`: whether its index is the commit that its parent records."""
    files.tracked.update((f"{folder}/{name}", blob if same else "") for name, blob in inner.tracked.items())
    files.others.update(f"{folder}/{name}" for name in inner.others)
    files.absent.update(f"{folder}/{name}" for name in inner.absent)


def _inside(root: Path, names: Iterable[str]) -> Iterator[str]:
    """The names that lead to a file of the tree. The index of a repository may hold any, such as `../x`."""
    linked: dict[str, bool] = {}

    def is_linked(folders: list[str]) -> bool:
        """Whether a parent folder is a link: for git, the files below it are deleted."""
        folder = ""
        for part in folders:
            folder += f"{part}/"
            if folder not in linked:
                linked[folder] = (root / folder).is_symlink()
            if linked[folder]:
                return True
        return False

    for name in names:
        parts = name.split("/")
        if len(name) > LONGEST_PATH or any(len(os.fsencode(part)) > LONGEST_NAME for part in parts):
            continue
        if any(part in {"", ".", ".."} or is_dot_git(part) for part in parts):
            continue
        if not is_linked(parts[:-1]):
            yield name


def _is_second_work_tree(path: Path) -> bool:
    """Whether `git worktree add` made a folder: another state of a repository, not a part of this one."""
    pointer = path / ".git"  # in a main work tree it is a folder
    return pointer.is_file() and "/worktrees/" in pointer.read_text(errors="replace")


def _names(listed: bytes) -> Iterator[str]:
    """The names in a list of git, which ends the name of an inner repository with a slash."""
    return (os.fsdecode(name).rstrip("/") for name in listed.split(b"\0") if name)
