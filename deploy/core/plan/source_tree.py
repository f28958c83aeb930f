"""The working tree that a launch sends to the hosts: its files and their contents.

A link within the tree stays a link. An absolute link out of it, such as `data -> /mnt/shared`, is intended.
It is kept, and each host reports whether it has the target (core/agent/supervisor.py).
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import stat
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PurePosixPath

from ..errors import UsageError
from ..text.text import count
from .git import ContentCheck, GitFiles, Head, git_files, git_root, is_stored_as
from .walk import JOB, KEYS, RUNS, IgnoreFiles, is_file, walk

IGNORE_FILE = ".musterignore"
SAMPLE_BYTES, INCOMPRESSIBLE = 1 << 12, 0.9
START = "start the launch in the folder of your project"
IN_GIT = f"{START}, keep data outside of it, or list it in .gitignore or {IGNORE_FILE}"
WITHOUT_GIT = (
    f"{START}, keep data outside of it, list it in {IGNORE_FILE}, or keep it in a folder whose name begins "
    "with '.'; after git init, .gitignore applies too"
)


@dataclass(frozen=True)
class TreeFile:
    """One file of the tree: its path below the root, and its content or, for a link, its target."""

    path: str
    executable: bool
    digest: str
    link: str | None = None
    size: int = 0
    source: str = ""
    """The path of its content here, if that is not below the root. Its path on a host has no prefix then."""
    untracked: bool = False
    """Whether git does not track it. If it vanishes or changes before it is sent, the launch continues."""


@dataclass
class Edits:
    """What happened to files that git does not track after they were listed."""

    vanished: set[str] = field(default_factory=set)
    """The digests of those that were removed."""
    changed: dict[str, TreeFile] = field(default_factory=dict)
    """By path, those whose content changed, as it was sent."""


@dataclass(frozen=True)
class Tree:
    """The files that a launch sends. `within`: the folder in which the user started it, relative to the root.

    `prefix`: their folder on a host; empty if the paths are the same on both machines.
    """

    root: Path
    within: str
    files: tuple[TreeFile, ...]
    prefix: str = ""
    absent: tuple[str, ...] = ()
    """Submodules that are not checked out, so that no host gets their files."""
    vanished: tuple[str, ...] = ()
    """Files that git does not track, and that were removed here before they were read or sent."""
    commit: str = ""
    """The git commit of the tree; empty without a repository."""
    clean: bool = False
    """Whether these are exactly the files of the commit."""

    @property
    def size(self) -> int:
        """The size of all files, in bytes."""
        return sum(file.size for file in self.files)

    def source(self, file: TreeFile) -> Path:
        return Path(file.source) if file.source else self.root / file.path

    def listing(self) -> list[tuple[str, bool, str, str | None]]:
        """The list of files for a host: path, executable, digest, target of a link."""
        return [
            (
                file.path if file.source else str(PurePosixPath(self.prefix, file.path)),
                file.executable,
                file.digest,
                file.link,
            )
            for file in self.files
        ]

    def links_out(self) -> list[tuple[str, str]]:
        """The links out of the tree, each with its target, which every host must have."""
        return [(file.path, file.link) for file in self.files if file.link and file.link.startswith("/")]

    def after(self, edits: Edits) -> Tree:
        present = [edits.changed.get(file.path, file) for file in self.files]
        gone = [file.path for file in present if file.digest in edits.vanished]
        files = tuple(file for file in present if file.digest not in edits.vanished)
        return replace(self, files=files, vanished=(*self.vanished, *gone), clean=self.clean and not gone)

    def archive(self, digests: Sequence[str], edits: Edits | None = None) -> bytes:
        """A tar archive of these contents, in which the name of each member is its digest.

        Raises UsageError if a file has changed since the scan. It may have grown, like a log. `edits` gets
        the files that git does not track and that were removed, or changed for the first time, of which the
        archive has the new content; without it that is an error too.
        """
        wanted, replaced = {*digests}, set[str]()
        contents: dict[str, bytes] = {}
        for file in self.files:
            if file.digest in wanted and file.digest not in contents:
                try:
                    contents[file.digest] = self._content(file)
                except _VanishedError:
                    if edits is None or not file.untracked:
                        raise
                except _ChangedError:
                    if edits is None or not file.untracked or file.path in edits.changed:
                        raise
                    content = _bytes_of(self.source(file))
                    digest = hashlib.sha256(content).hexdigest()
                    edits.changed[file.path] = replace(file, digest=digest, size=len(content))
                    contents[digest] = content
                    replaced.add(file.digest)
        if edits is not None:
            edits.vanished |= wanted - contents.keys() - replaced
        return archive_of(contents)

    def _content(self, file: TreeFile) -> bytes:
        path = self.source(file)
        content = _bytes_of(path, file.size)
        if hashlib.sha256(content).hexdigest() != file.digest:
            raise _ChangedError(
                f"{path}: changed while it was sent; try again, or list it in {IGNORE_FILE} to keep it here"
            )
        return content


def _bytes_of(path: Path, most: int = -1) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(most)
    except OSError as error:
        raise _unreadable(path, error) from None


class _ChangedError(UsageError):
    """A file has changed since it was listed."""


class _VanishedError(UsageError):
    """A file was removed while the tree was read or sent."""


def _unreadable(path: Path, error: OSError) -> UsageError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return _VanishedError(f"{path}: was removed while the tree was read; start the launch again")
    return UsageError(f"{path}: cannot be read: {error.strerror}")


def archive_of(contents: Mapping[str, bytes]) -> bytes:
    """A tar archive of contents, by their digest."""
    buffer = io.BytesIO()
    with _archive_in(buffer, contents.values()) as tar:
        for digest, content in contents.items():
            member = tarfile.TarInfo(digest)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _archive_in(buffer: io.BytesIO, contents: Iterable[bytes]) -> tarfile.TarFile:
    """A new archive, compressed if samples of its contents become smaller.

    Level 1 is fast, and reduces text to a third. Weights and images do not shrink.
    """
    sample = b"".join(content[:SAMPLE_BYTES] for content in contents)
    if len(zlib.compress(sample, 1)) > INCOMPRESSIBLE * len(sample):
        return tarfile.open(fileobj=buffer, mode="w")
    return tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1)


def scan(folder: Path, top: Path | None = None) -> Tree:
    """The tree of a folder: its git work tree without ignored files, else `top`, else the folder itself.

    `.musterignore` excludes files, even if git tracks them. Files that vanish meanwhile are left out.
    `UsageError` if git fails, if the tree is too large, and for links out of the tree.
    """
    root = git_root(folder)
    head, root = Head(root) if root else None, root or top or folder
    ignored = IgnoreFiles(root, IGNORE_FILE, follow_links=True)
    git = git_files(root) if head else GitFiles()
    listed = (name for name in _of_git(root, git) if not ignored.has(name))
    candidates = listed if head else walk(root, leave_out=ignored)
    sizes, modes = _measured(root, candidates)  # before any file is read
    if why := too_large(str(root), sizes, IN_GIT if head else WITHOUT_GIT):
        raise UsageError(why)
    names = sorted(sizes)
    links = links_of(root, names, modes)
    tracked = {name: file for name, file in git.tracked.items() if not ignored.has(name)}
    same = tracked.keys() == sizes.keys()
    files, vanished = list[TreeFile](), list[str]()
    for name in names:
        try:
            file, unchanged = _read(root, name, links.get(name), tracked[name] if same else "")
        except _VanishedError:
            if name in tracked:
                raise
            vanished.append(name)
            continue
        files.append(replace(file, untracked=name not in tracked))
        same = same and unchanged
    commit, staged = head.result() if head else ("", False)
    same = same and staged
    within, absent = os.path.relpath(folder, root), tuple(sorted(git.absent))
    return Tree(root, within, tuple(files), absent=absent, vanished=(*vanished,), commit=commit, clean=same)


def _measured(root: Path, names: Iterable[str]) -> tuple[dict[str, int], dict[str, int]]:
    """The size and the mode of each file, up to the limits of a tree."""
    sizes: dict[str, int] = {}
    modes: dict[str, int] = {}
    total = 0
    for name in names:
        try:
            status = os.lstat(root / name)
        except OSError:  # a file that has vanished is noticed when it is read
            sizes[name] = 0
            continue
        sizes[name], modes[name] = status.st_size, status.st_mode
        total += status.st_size
        if len(sizes) > MOST_FILES or (total > MAX_BYTES and len(sizes) > ENOUGH_FILES):
            break
    return sizes, modes


def of_package(folder: Path, leave_out: Sequence[str] = ()) -> Tree:
    """The Python files of a package of Muster and its data, which become `muster/NAME` on a host.

    `leave_out`: folders that a host does not need. With `muster/__init__.py`, or Python would prefer another
    version of Muster, if one is installed there.
    """
    found = sorted(path for kind in ("*.py", "*.csv.gz") for path in folder.rglob(kind))
    inner = (path.relative_to(folder.parent) for path in found)
    files = [_read(folder.parent, str(path))[0] for path in inner if not {*path.parts[:-1]} & {*leave_out}]
    for face in (folder.parent / "__init__.py", folder.parent / "muster" / "__init__.py"):
        if face.is_file():  # the first in a wheel, the second in a checkout
            file = _read(face.parent, face.name)[0]
            files.append(replace(file, path="muster/__init__.py", source=str(face)))
    return Tree(folder.parent, ".", tuple(files), prefix="muster")


def with_files(tree: Tree, folder: Path, inside: str = "") -> Tree:
    """The tree with all files of another folder, which has the path `inside` on a host."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    names = sorted(str(path.relative_to(folder)) for path in found)
    more = (
        replace(_read(folder, name)[0], path=str(PurePath(inside, name)), source=str(folder / name))
        for name in names
    )
    return replace(tree, files=(*tree.files, *more))


def _of_git(root: Path, files: GitFiles) -> Iterator[str]:
    """The files that git tracks, and those that it neither tracks nor ignores."""
    others = (name for name in files.others if RUNS not in PurePath(name).parts[:-1])
    return (name for name in {*files.tracked, *others} if not _is_own(name) and is_file(root / name))


def _is_own(name: str) -> bool:
    """Whether Muster made a file: keys, or files in run folders, which would grow with each launch."""
    return any(part == KEYS or JOB.fullmatch(part) for part in PurePath(name).parts[:-1])


def _read(root: Path, name: str, link: str | None = None, blob: str = "") -> tuple[TreeFile, bool]:
    """A file, and whether it has the content with this id of git."""
    path, digest, size = root / name, hashlib.sha256(), 0
    try:
        if link is not None:
            target = os.fsencode(path.readlink())
            check = ContentCheck(blob, len(target))
            check.update(target)
            return TreeFile(name, executable=False, digest="", link=link), check.is_same
        with path.open("rb") as stream:
            check = ContentCheck(blob, os.fstat(stream.fileno()).st_size)
            while part := stream.read(1 << 20):
                digest.update(part)
                check.update(part)
                size += len(part)
        file = TreeFile(name, os.access(path, os.X_OK), digest.hexdigest(), size=size)
        return file, bool(blob) and (check.is_same or is_stored_as(blob, path, file.digest, size))
    except OSError as error:
        raise _unreadable(path, error) from None


# -- limits --

MAX_BYTES = 1 << 30
# The answer of a host that lacks all of them must fit into a line (core/connect/channel.py).
MOST_FILES = 100_000
ENOUGH_FILES = 5_000  # after these, a tree that is too large is not read to its end
LARGEST = 10


def largest_folders(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """The ten folders with the most bytes, without those of subfolders; files of the root by their name.

    `sizes`: the bytes of each file.
    """
    totals: dict[str, int] = {}
    for name, size in sizes.items():
        folder = str(PurePosixPath(name).parent)
        shown = name if folder == "." else f"{folder}/"
        totals[shown] = totals.get(shown, 0) + size
    return sorted(totals.items(), key=lambda item: -item[1])[:LARGEST]


def too_large(root: str, sizes: Mapping[str, int], advice: str) -> str:
    """Why a tree cannot be sent, with its largest folders; empty for a tree that can."""
    total, many = sum(sizes.values()), len(sizes) > MOST_FILES
    if total <= MAX_BYTES and not many:
        return ""
    if many:
        tops = Counter(name.partition("/")[0] + ("/" if "/" in name else "") for name in sizes)
        listed = [f"    {number:8} files  {what}" for what, number in tops.most_common(LARGEST) if number > 1]
        held, most = f"more than {MOST_FILES} files", f"{MOST_FILES} files"
    else:
        listed = [f"    {size >> 20:6} MiB  {what}" for what, size in largest_folders(sizes) if size >> 20]
        more = "more than " if len(sizes) > ENOUGH_FILES else ""
        held, most = f"{more}{total >> 20} MiB of files", f"{MAX_BYTES >> 20} MiB"
    counted = ["counted so far:"] if many or len(sizes) > ENOUGH_FILES else []
    return "\n".join([f"{root} holds {held}, and a launch sends at most {most}: {advice}", *counted, *listed])


MOST_LISTED = 500
REMEDY = (
    f"remove them, list them in {IGNORE_FILE}, or bring the data with muster data push; an absolute link is "
    "kept, if every host has its target (docs/how-to/own-project.md#links)"
)


def links_of(root: Path, names: Iterable[str], modes: Mapping[str, int]) -> dict[str, str]:
    """The target of each link, in a form that is valid on every host; `UsageError` lists all that have none.

    `modes`: the mode of each name, from lstat.
    """
    top = root.resolve()
    targets: dict[str, str] = {}
    refused: list[str] = []
    for name in names:
        if stat.S_ISLNK(modes.get(name, 0)):
            try:
                targets[name] = _target(top, root / name, name)
            except OSError:  # it was removed or replaced: its reading notes that
                continue
            except ValueError as error:
                refused.append(f"    {root / name}: links to {error}")
    if refused:
        more = [f"    and {len(refused) - MOST_LISTED} more"] if len(refused) > MOST_LISTED else []
        what = f"{count(len(refused), 'link')} of the tree that no host can follow"
        raise UsageError("\n".join([f"{what}; {REMEDY}", *refused[:MOST_LISTED], *more]))
    return targets


def _target(top: Path, path: Path, name: str) -> str:
    """The target of a link; ValueError with the reason if it has none on a host."""
    link = path.readlink()
    target, reached = str(link), Path(os.path.realpath(path))
    try:
        path.stat()
    except FileNotFoundError:
        pass  # the hosts may have it
    except OSError as error:
        if reached.is_relative_to(top):  # the hosts may reach a target outside of the tree
            why = "which leads back to itself" if error.errno == errno.ELOOP else f"but {error.strerror}"
            raise ValueError(f"{target}, {why}") from None
    leaves = os.path.normpath(PurePosixPath(name).parent / link).split("/")[0] == ".."
    if reached.is_relative_to(top):
        named_outside = leaves or link.is_absolute()
        return os.path.relpath(reached, path.parent.resolve()) if named_outside else target
    if leaves and not link.is_absolute():
        raise ValueError(f"{target}, outside the tree; no other host has that")
    return target


# -- folders that each host keeps from one launch to the next (--keep) --

PLACEHOLDERS = {".gitkeep", ".gitignore", ".keep"}
"""Files that a tree has in a folder only so that git keeps the folder."""
LONGEST_KEY = 40


def project_key(root: Path) -> str:
    """The name of the kept folders of a project: the name of its folder here, and a digest of the path."""
    name = re.sub(r"[^\w.-]+", "-", root.name, flags=re.ASCII)[:LONGEST_KEY].strip(".-") or "project"
    return f"{name}-{hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:8]}"


def with_kept(tree: Tree, named: Sequence[str]) -> tuple[Tree, tuple[str, ...]]:
    """The tree without placeholders in kept folders, and the paths of these folders below its root.

    `named`: relative to the folder of the launch. `UsageError` for a path outside of it, and for a folder in
    which the tree has files: a host would have to choose between them and its own.
    """
    paths = tuple(dict.fromkeys(_path(tree, name) for name in named))
    for path in paths:
        if inner := next((each for each in paths if each.startswith(f"{path}/")), ""):
            raise UsageError(f"--keep {inner}: {path} is kept already, with all that is in it")
        _require_none(tree, path)
    files = tuple(file for file in tree.files if not any(file.path.startswith(f"{path}/") for path in paths))
    return (replace(tree, files=files) if len(files) < len(tree.files) else tree), paths


def _path(tree: Tree, name: str) -> str:
    path = os.path.normpath(name)
    if path.split("/")[0] in {"", ".", ".."} or not name.isprintable():
        raise UsageError(
            f"--keep {name!r}: write a folder below the one in which the launch starts, as the program names "
            "it: --keep checkpoints"
        )
    return os.path.normpath(PurePosixPath(tree.within, path))


def _require_none(tree: Tree, path: str) -> None:
    """`UsageError` for files of the tree in a kept folder, or in the place of it or of a folder above it."""
    parts = PurePosixPath(path)
    places = {str(parts), *map(str, parts.parents)}
    found = [
        file.path
        for file in tree.files
        if file.path in places
        or (file.path.startswith(f"{path}/") and PurePosixPath(file.path).name not in PLACEHOLDERS)
    ]
    if found:
        raise UsageError(
            f"--keep {path}: the launch sends {count(len(found), 'file')} there ({found[0]}), and each host "
            f"keeps its own; list {path} in {IGNORE_FILE}, or keep another folder"
        )
