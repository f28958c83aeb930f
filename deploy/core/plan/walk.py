"""The files of a folder that git does not describe, and the patterns of a `.gitignore` or a `.musterignore`.

Patterns have the meaning that gitignore(5) gives them, but for classes such as `[[:alpha:]]`. The time for a
path is at most proportional to its length times that of the patterns: a star matches as few characters as
possible and is never tried again, which suffices, because the next star can match the rest.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ..decode import lazy_dataclass
from ..errors import Problem, UsageError
from ..wire.files import read_regular

MOST_PATTERNS, LONGEST_PATTERN = 2000, 1000
ANY_FOLDERS = "**"
_Matches = Callable[[str], object]


@lazy_dataclass(frozen=True)
class _Pattern:
    names: tuple[_Matches | None, ...]
    """What the parts of a path must match; None for any number of folders."""
    negated: bool
    folders_only: bool

    def matches(self, parts: list[str], *, is_folder: bool) -> bool:
        if self.folders_only and not is_folder:
            return False
        names, star, tried = self.names, -1, 0
        name = part = 0
        while part < len(parts):
            wanted = names[name] if name < len(names) else None
            if name < len(names) and wanted is None:
                star, tried, name = name, part, name + 1
            elif wanted is not None and wanted(parts[part]):
                name, part = name + 1, part + 1
            elif star >= 0:
                tried += 1
                name, part = star + 1, tried
            else:
                return False
        return name == len(names)


class IgnoreFiles:
    """The files of one name, such as `.gitignore`, in a folder and below it. Each is read at its first use.

    As with git, the nearest file with a pattern for a path decides, and with a folder everything in it is
    ignored. `follow_links`: also read those that are links, which git does not.
    """

    def __init__(self, root: Path, name: str, *, follow_links: bool) -> None:
        self._root, self._name, self._follow_links = root, name, follow_links
        self._files: dict[str, Ignored | None] = {}
        self._folders: dict[str, bool] = {}

    def has(self, path: str, *, is_folder: bool = False) -> bool:
        """Whether a path is ignored, directly or with one of its folders."""
        files: list[tuple[int, Ignored]] = []  # of the folders so far, each with the start of the path in it
        folder, start = "", 0
        while True:
            if found := self._file(folder):
                files.append((start, found))
            end = path.find("/", start)
            if end < 0:
                return _is_ignored(files, path, is_folder=is_folder)
            folder, start = path[:end], end + 1
            if folder not in self._folders:
                self._folders[folder] = _is_ignored(files, folder, is_folder=True)
            if self._folders[folder]:
                return True

    def _file(self, folder: str) -> Ignored | None:
        if folder not in self._files:
            path = self._root / folder / self._name
            is_read = path.exists() and not path.is_dir() and (self._follow_links or not path.is_symlink())
            self._files[folder] = Ignored.of_file(path) if is_read else None
        return self._files[folder]


def _is_ignored(files: list[tuple[int, Ignored]], path: str, *, is_folder: bool) -> bool:
    decisions = (found.decides(path[start:], is_folder=is_folder) for start, found in reversed(files))
    return next((decision for decision in decisions if decision is not None), False)


@lazy_dataclass(frozen=True)
class Ignored:
    """The patterns of one file."""

    patterns: list[_Pattern]

    @classmethod
    def of_file(cls, path: Path) -> Ignored:
        try:
            return cls.of(read_regular(path).decode(errors="surrogateescape"), str(path))
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror}") from None

    @classmethod
    def of(cls, text: str, source: str) -> Ignored:
        """The patterns of a file; `UsageError` for too many or too long ones."""
        lines = text.removeprefix("\ufeff").split("\n")
        if len(lines) > MOST_PATTERNS:
            raise UsageError(f"{source}: more than {MOST_PATTERNS} lines of patterns; name folders instead")
        for number, line in enumerate(lines, 1):
            if len(line) > LONGEST_PATTERN:
                problem = f"a pattern of more than {LONGEST_PATTERN} characters"
                raise UsageError(str(Problem(source, number, 1, problem)))
        return cls([pattern for line in lines if (pattern := _pattern(line))])

    def decides(self, path: str, *, is_folder: bool) -> bool | None:
        """Whether the last pattern that matches a path ignores it; None if no pattern matches it."""
        parts = path.split("/")
        for pattern in reversed(self.patterns):
            if pattern.matches(parts, is_folder=is_folder):
                return not pattern.negated
        return None


def _pattern(line: str) -> _Pattern | None:
    """The pattern of a line; None for a comment and for a pattern that matches nothing."""
    text = re.sub(r"(?<!\\)((?:\\\\)*)[ \t\r]+$", r"\1", line)
    if not text or text.startswith("#"):
        return None
    negated, text = text.startswith("!"), text.removeprefix("!")
    folders_only, text = text.endswith("/"), text.removesuffix("/")
    names = text.split("/")
    if not text or "" in names[1:]:
        return None
    if "/" not in text:
        names = [ANY_FOLDERS, *names]  # at any depth
    elif not names[0]:
        names = names[1:]
    matchers: list[_Matches | None] = []
    for name in names:
        if not re.fullmatch(r"\*{2,}", name):
            matchers.append(_matcher(name))
        elif matchers[-1:] != [None]:
            matchers.append(None)
    if matchers[-1] is None:
        matchers.append(lambda name: True)  # the content of the folder, not the folder
    return _Pattern(tuple(matchers), negated, folders_only)


def _matcher(name: str) -> _Matches:
    """The matcher for a part of a path, by fnmatch, which has no escapes and writes `[!` for `[^`."""
    plain = re.sub(r"\\(.)", lambda found: f"[{found[1]}]" if found[1] in "*?[" else found[1], name)
    return re.compile(fnmatch.translate(plain.replace("[^", "[!"))).match


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
