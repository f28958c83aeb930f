"""Requests for a user's commands and files on every host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from ...core.connect.reports import Report
from ...core.connect.requests import MOST_ENTRIES, Nothing, Request
from ...core.connect.silence import STUCK_READING_SECONDS
from ...core.decode import AtMost, Like, lazy_dataclass
from ...core.hosts.bounds import Bytes, Code, Count, Path
from ...core.hosts.stuck_processes import StuckProcesses

MOST_OUTPUT = 1 << 20
"""Bytes of the output of a command (features/adhoc/on_host/run_command.py)."""


@dataclass(frozen=True)
class FileDraft:
    """The path at which a host receives a file or folder, and the bytes that it has already."""

    draft: Path
    have: Bytes = 0


class ListedEntry(NamedTuple):
    """An entry of a folder of a host (core/wire/files.py)."""

    path: Path
    kind: Literal["folder", "file", "link"]
    mode: Count
    length: Bytes
    digest: Annotated[str, Like("([0-9a-f]{64})?")]
    link: Path


@dataclass(frozen=True)
class FileFacts:
    """A file, or a folder with its entries."""

    mode: Count
    length: Bytes = 0
    digest: Annotated[str, Like("([0-9a-f]{64})?")] = ""
    entries: Annotated[tuple[ListedEntry, ...], AtMost(MOST_ENTRIES)] | None = None
    more: bool = False
    """Whether `FILE_ENTRIES` returns further entries."""


@dataclass(frozen=True)
class Entries:
    """Further entries of a folder."""

    entries: Annotated[tuple[ListedEntry, ...], AtMost(MOST_ENTRIES)]
    more: bool


@lazy_dataclass(frozen=True)
class CommandRan(Report, event="ran", payload="output", room=MOST_OUTPUT):
    """A command of `muster run` has ended. `cut`: bytes of its output that are left out.

    `left`: its processes that not even SIGKILL has ended.
    """

    code: Code
    cut: Bytes
    timed_out: bool
    left: StuckProcesses = ()
    output: bytes = b""


RUN = Request("run", Nothing)
PUT_BEGIN = Request("put_begin", FileDraft, stuck_after=STUCK_READING_SECONDS)
PUT_WRITE = Request("put_write", Nothing)
PUT_CHECK = Request("put_check", Nothing, stuck_after=STUCK_READING_SECONDS)
PUT_PLACE = Request("put_place", Nothing)
FILE = Request("file", FileFacts, stuck_after=STUCK_READING_SECONDS)
FILE_ENTRIES = Request("entries", Entries, stuck_after=STUCK_READING_SECONDS)
