"""The working tree that a launch takes along: which files, and what is in them."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.errors import UsageError

MAX_BYTES = 1 << 30
# Left out where git does not say what belongs to the tree.
NEVER = {"__pycache__", "node_modules", "runs", "venv"}


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
    """The files that a launch takes along. `within` is where the user stood, below the root."""

    root: Path
    within: str
    files: tuple[TreeFile, ...]

    @property
    def size(self) -> int:
        """What the tree weighs, in bytes."""
        return sum(file.size for file in self.files)

    def source(self, file: TreeFile) -> Path:
        """Where the content of a file is."""
        return self.root / file.path

    def listing(self) -> list[tuple[str, bool, str, str | None]]:
        """What a host has to know to put the files into place."""
        return [(file.path, file.executable, file.digest, file.link) for file in self.files]

    def archive(self, digests: Sequence[str]) -> bytes:
        """A tar of these contents, each a member named by its digest.

        Raises UsageError if one is no longer what the scan read, but for having grown: a log may.
        """
        wanted = set(digests)
        buffer = io.BytesIO()
        # Level 1: code travels once, and a slow link still gets a third of the bytes.
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
            raise UsageError(f"{path}: changed while it was sent; try again, or list it in .gitignore")
        return content


def scan(place: Path) -> Tree:
    """The tree around `place`: its git work tree without ignored files, else the folder itself."""
    root = _git_root(place) or place
    names = sorted(_git_files(root) if root != place or (place / ".git").exists() else _walk(root))
    files = tuple(_read(root, name) for name in names)
    tree = Tree(root, os.path.relpath(place, root), files)
    if tree.size > MAX_BYTES:
        largest = max(files, key=lambda file: file.size)
        raise UsageError(
            f"{root} holds {tree.size >> 20} MiB of files ({largest.path} alone {largest.size >> 20} MiB); "
            f"a launch sends at most {MAX_BYTES >> 20} MiB: keep data outside, or list it in .gitignore"
        )
    return tree


def of_files(root: Path, names: Sequence[str]) -> Tree:
    """The tree of these files alone."""
    return Tree(root, ".", tuple(_read(root, name) for name in names))


def _git_root(place: Path) -> Path | None:
    answer = _git(place, "rev-parse", "--show-toplevel")
    return Path(answer.rstrip("\n")) if answer else None


def _git_files(root: Path) -> Iterator[str]:
    listed = _git(root, "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate", "-z") or ""
    # What the index names may have been deleted since, or be a folder: a submodule.
    return (name for name in listed.split("\0") if name and _is_file(root / name))


def _is_file(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _git(place: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(place), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:  # no git here
        return None
    return done.stdout if done.returncode == 0 else None


def _walk(root: Path) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        folders[:] = [name for name in folders if name not in NEVER and not name.startswith(".")]
        for name in names + links:
            path = Path(folder, name)
            if _is_file(path):
                yield str(path.relative_to(root))


def _read(root: Path, name: str) -> TreeFile:
    path = root / name
    if path.is_symlink():
        target = str(path.readlink())
        if not path.resolve().is_relative_to(root.resolve()):
            raise UsageError(f"{path}: links to {target}, outside the tree; no other host has that")
        return TreeFile(name, executable=False, digest="", link=target)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    executable = os.access(path, os.X_OK)
    return TreeFile(name, executable, hashlib.sha256(content).hexdigest(), size=len(content))
