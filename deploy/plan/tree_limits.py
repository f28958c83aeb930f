"""What of a working tree stays here: what `.musterignore` lists, and a tree that is too large. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath

MAX_BYTES = 1 << 30
MOST_FILES = (
    100_000  # the answer of a host that lacks all of them must fit into a line (deploy/connect/channel.py)
)
ENOUGH_FILES = 5_000  # after these, a tree that is too large is not read to its end
LARGEST = 10
IGNORE_FILE = ".musterignore"


def largest_folders(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """The ten folders with the most bytes of their own, without subfolders; files of the root by their name.

    `sizes`: the bytes of each file.
    """
    totals: dict[str, int] = {}
    for name, size in sizes.items():
        folder = str(PurePosixPath(name).parent)
        what = name if folder == "." else f"{folder}/"
        totals[what] = totals.get(what, 0) + size
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
    counted = ["so far, of what was counted:"] if many or len(sizes) > ENOUGH_FILES else []
    return "\n".join([f"{root} holds {held}, and a launch sends at most {most}: {advice}", *counted, *listed])
