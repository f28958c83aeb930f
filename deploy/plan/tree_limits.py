"""What of a working tree stays here: what `.musterignore` lists, and a tree that is too large. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

MAX_BYTES = 1 << 30
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
    total = sum(sizes.values())
    if total <= MAX_BYTES:
        return ""
    listed = [f"    {size >> 20:6} MiB  {what}" for what, size in largest_folders(sizes) if size >> 20]
    limit = f"a launch sends at most {MAX_BYTES >> 20} MiB"
    return "\n".join([f"{root} holds {total >> 20} MiB of files, and {limit}: {advice}", *listed])
