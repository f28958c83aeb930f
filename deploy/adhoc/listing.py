"""Asks a host for the facts of a file or folder; the listing of a large folder comes page by page."""

from __future__ import annotations

import shlex
from dataclasses import replace

from ..connect.channel import Channel
from ..connect.requests.files import FILE, FILE_ENTRIES, FileFacts, ListedEntry
from ..errors import MusterError
from ..hosts.received_paths import inner_paths

# Limits for one folder: a host may send anything, and several hosts may at once.
MOST_ENTRIES, MOST_TEXT = 200_000, 1 << 25


def facts_of(channel: Channel, path: str, seconds: float) -> FileFacts:
    """The facts of a path, with all entries of a folder. `seconds`: for each page; the host reads the files.

    `MusterError` for a folder with more than MOST_ENTRIES entries, or whose paths are longer than MOST_TEXT,
    and for a path that must not come here (deploy/hosts/received_paths.py).
    """
    facts = channel.ask(FILE, path=path, seconds=seconds)
    listed: list[ListedEntry] = list(facts.entries or ())
    more, text = facts.more, _length(facts.entries or ())
    while more:
        page = channel.ask(FILE_ENTRIES, path=path, seconds=seconds)
        if page.more and not page.entries:
            raise MusterError(f"{path}: its listing does not continue")
        listed += page.entries
        more, text = page.more, text + _length(page.entries)
        if len(listed) > MOST_ENTRIES or text > MOST_TEXT:
            most = min(len(listed) - 1, MOST_ENTRIES)
            raise MusterError(
                f"{path} has more than {most} files and folders; bring it as one file: "
                f"muster run -- tar cf NAME.tar {shlex.quote(str(path))}, then muster get NAME.tar"
            )
    inner_paths((entry.path for entry in listed), channel.host)
    return facts if facts.entries is None else replace(facts, entries=tuple(listed), more=False)


def _length(entries: tuple[ListedEntry, ...]) -> int:
    return sum(len(entry.path) + len(entry.link) for entry in entries)
