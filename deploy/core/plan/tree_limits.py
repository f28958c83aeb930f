"""The limits of a working tree: links that no host can follow, and the size.

A link within the tree stays a link. An absolute link out of it, such as `data -> /mnt/shared`, is intended.
It is kept, and each host reports whether it has the target (core/agent/supervisor.py).
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from ..errors import UsageError
from ..text.text import count

MAX_BYTES = 1 << 30
# The answer of a host that lacks all of them must fit into a line (core/connect/channel.py).
MOST_FILES = 100_000
ENOUGH_FILES = 5_000  # after these, a tree that is too large is not read to its end
LARGEST = 10
IGNORE_FILE = ".musterignore"


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
