"""The working tree that a launch sends to the hosts: its files and their contents."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath

from ..errors import UsageError
from .tree_limits import IGNORE_FILE, too_large, without_ignored

# Names of what Muster itself makes: run folders, named by job ids (also drafts of them), and keys.
RUNS, KEYS = "runs", ".muster"
JOB = re.compile(r"\.?[0-9]{8}-[0-9]{6}-[0-9a-f]{4}(\..*)?")
IN_GIT = f"keep data outside of it, or list it in .gitignore or {IGNORE_FILE}"
WITHOUT_GIT = (
    f"keep data outside of it, list it in {IGNORE_FILE}, or keep it in a folder whose name begins with '.'; "
    "after git init, what .gitignore lists stays here too"
)
# Folders that are left out of a tree without git.
NEVER = {"__pycache__", "node_modules", RUNS, "venv"}


@dataclass(frozen=True)
class TreeFile:
    """One file of the tree: its path below the root, and its content or, for a link, its target."""

    path: str
    executable: bool
    digest: str
    link: str | None = None
    size: int = 0


@dataclass(frozen=True)
class Tree:
    """The files that a launch sends. `within`: the folder in which the user started it, relative to the root.

    `prefix`: the folder on a host into which they go; empty if their paths are the same as here.
    """

    root: Path
    within: str
    files: tuple[TreeFile, ...]
    prefix: str = ""

    @property
    def size(self) -> int:
        """The size of all files, in bytes."""
        return sum(file.size for file in self.files)

    def source(self, file: TreeFile) -> Path:
        """The path of the content of a file."""
        return self.root / file.path

    def listing(self) -> list[tuple[str, bool, str, str | None]]:
        """What a host has to know to put the files in place: path, executable, digest, target of a link."""
        return [
            (str(PurePosixPath(self.prefix, file.path)), file.executable, file.digest, file.link)
            for file in self.files
        ]

    def archive(self, digests: Sequence[str]) -> bytes:
        """A tar archive of these contents, in which the name of each member is its digest.

        Raises UsageError if a file has changed since the scan. A file may have grown, like a log.
        """
        wanted = set(digests)
        buffer = io.BytesIO()
        # Level 1 is fast: code is sent only once, and a slow link carries only a third of the bytes.
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
            for file in self.files:
                if file.digest in wanted:
                    wanted.discard(file.digest)
                    member = tarfile.TarInfo(file.digest)
                    member.size = file.size
                    tar.addfile(member, io.BytesIO(self._content(file)))
        return buffer.getvalue()

    def _content(self, file: TreeFile) -> bytes:
        path = self.source(file)
        try:
            with path.open("rb") as stream:
                content = stream.read(file.size)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read any more: {error.strerror}") from None
        if hashlib.sha256(content).hexdigest() != file.digest:
            raise UsageError(f"{path}: changed while it was sent; try again, or keep it out of the tree")
        return content


def scan(place: Path) -> Tree:
    """The tree around `place`: its git work tree without ignored files, else the folder itself.

    What `.musterignore` in the root lists stays here too, also if git tracks it.
    `UsageError` if git fails, if the tree is too large, and for links out of the tree.
    """
    root = _git_root(place)
    names = sorted(_walk(place) if root is None else _git_files(root))
    in_git, root = root is not None, root or place
    if (root / IGNORE_FILE).is_file():
        names = without_ignored(names, (root / IGNORE_FILE).read_text(errors="replace"))
    sizes = {name: _size(root / name) for name in names}  # before any file is read
    if why := too_large(str(root), sizes, IN_GIT if in_git else WITHOUT_GIT):
        raise UsageError(why)
    return Tree(root, os.path.relpath(place, root), tuple(_read(root, name) for name in names))


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # a file that is gone by now gets its error when it is read
        return 0


def of_package(folder: Path, leave_out: Sequence[str] = ()) -> Tree:
    """The Python files of a package of ours, which become `muster/NAME` on a host. For checkouts and wheels.

    `leave_out`: folders of the package that a host does not need.
    """
    paths = sorted(folder.rglob("*.py"))
    names = [str(path.relative_to(folder.parent)) for path in paths if path.parent.name not in leave_out]
    return Tree(folder.parent, ".", tuple(_read(folder.parent, name) for name in names), prefix="muster")


def _git_root(place: Path) -> Path | None:
    """The work tree that `place` is in; None if there is no repository here."""
    here = place.resolve()
    if "GIT_DIR" not in os.environ and not any(
        (folder / ".git").exists() for folder in (here, *here.parents)
    ):
        return None
    return Path(os.fsdecode(_git(place, "rev-parse", "--show-toplevel")).rstrip("\n"))


def _git_files(root: Path) -> Iterator[str]:
    """The files that git tracks, also in submodules, and those that it neither tracks nor ignores."""
    tracked = _git(root, "ls-files", "--cached", "--recurse-submodules", "-z")
    others = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    wanted = {name for name in _names(tracked) if not _is_own(name)}
    wanted |= {name for name in _names(others) if not _is_own(name) and RUNS not in PurePath(name).parts[:-1]}
    # A path of the index may be deleted by now, or be a folder: a submodule that is not checked out.
    return (name for name in wanted if _is_file(root / name))


def _names(listed: bytes) -> Iterator[str]:
    return (os.fsdecode(name) for name in listed.split(b"\0") if name)


def _is_own(name: str) -> bool:
    """Whether Muster made a file: keys, or files in run folders, which would grow with each launch."""
    return any(part == KEYS or JOB.fullmatch(part) for part in PurePath(name).parts[:-1])


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _git(place: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(place), *arguments], capture_output=True, check=False)
    except OSError as error:
        text, status = f"git: {error.strerror}", 1
    else:
        text, status = done.stderr.decode(errors="replace").strip(), done.returncode
    if status:
        raise UsageError(
            f"{place} is in a git repository, and git has to say which files belong to it, but fails:\n{text}"
        )
    return done.stdout


def _walk(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if name not in NEVER and not name.startswith(".") and not JOB.fullmatch(name)
        ]
        links = [name for name in folders if Path(folder, name).is_symlink()]  # os.walk follows none
        for name in names + links:
            path = Path(folder, name)
            if _is_file(path):
                yield str(path.relative_to(root))


def _read(root: Path, name: str) -> TreeFile:
    path = root / name
    if path.is_symlink():
        return TreeFile(name, executable=False, digest="", link=_target(root, path))
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as stream:
            while part := stream.read(1 << 20):
                digest.update(part)
                size += len(part)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    return TreeFile(name, os.access(path, os.X_OK), digest.hexdigest(), size=size)


def _target(root: Path, path: Path) -> str:
    """The target of a link in the tree, in a form that is valid on every host."""
    target = str(path.readlink())
    try:
        reached = path.resolve()
    except (OSError, RuntimeError):  # RuntimeError: before Python 3.13
        raise UsageError(f"{path}: links to {target}, which leads back to itself; remove it") from None
    if not reached.is_relative_to(root.resolve()):
        raise UsageError(f"{path}: links to {target}, outside the tree; no other host has that")
    return os.path.relpath(reached, path.parent.resolve()) if Path(target).is_absolute() else target
