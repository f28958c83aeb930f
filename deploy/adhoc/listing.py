"""What a file or folder of a host is, however many files the folder has: a listing comes page by page."""

from __future__ import annotations

from dataclasses import replace

from ..connect.answers import FILE, FILE_ENTRIES, Entry, FileFacts
from ..connect.channel import Channel
from ..errors import MusterError

# Of one folder: a host may say anything, and several may at once.
MOST_ENTRIES, MOST_TEXT = 200_000, 1 << 25


def facts_of(channel: Channel, path: str, seconds: float) -> FileFacts:
    """What is there, with all entries of a folder; `seconds` for each page: contents are read for it.

    `MusterError` for a folder with more than MOST_ENTRIES entries, or whose paths are longer than MOST_TEXT.
    """
    told = channel.ask(FILE, path=path, seconds=seconds)
    found: list[Entry] = list(told.entries or ())
    more, text = told.more, _length(told.entries or ())
    while more:
        page = channel.ask(FILE_ENTRIES, path=path, seconds=seconds)
        if page.more and not page.entries:
            raise MusterError(f"{path}: its listing does not go on")
        found += page.entries
        more, text = page.more, text + _length(page.entries)
        if len(found) > MOST_ENTRIES or text > MOST_TEXT:
            most = min(len(found) - 1, MOST_ENTRIES)
            raise MusterError(
                f"{path} has more than {most} files and folders; bring it as one file: "
                f"muster run -- tar cf NAME.tar {path}, then muster get NAME.tar"
            )
    return told if told.entries is None else replace(told, entries=tuple(found), more=False)


def _length(entries: tuple[Entry, ...]) -> int:
    return sum(len(entry.path) + len(entry.link) for entry in entries)
