"""Requests for the removal of old jobs, and for what ended processes left in the memory of a host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ...core.connect.requests import MOST_ENTRIES, Request, WrittenFiles
from ...core.decode import AtMost, lazy_dataclass
from ...core.hosts.bounds import Bytes, Count, Name, Path
from ...core.text.terminal import harmless
from ...core.text.text import clip, count, size

LONGEST_NAME = 80


@lazy_dataclass(frozen=True)
class LeftMemory:
    """Files in /dev/shm that no process uses, of which `largest` is one."""

    files: Count
    bytes: Bytes
    largest: Path

    @property
    def described(self) -> str:
        """`2 files in /dev/shm, 64 MiB (largest: sem.a)`; empty for nothing."""
        largest = clip(harmless(self.largest), LONGEST_NAME)
        described = f"{count(self.files, 'file')} in /dev/shm, {size(self.bytes)} (largest: {largest})"
        return described if self.files else ""


@dataclass(frozen=True)
class JobResults:
    """The files that the program of a job wrote and that were not removed with its code and logs."""

    job: Name
    files: WrittenFiles


@dataclass(frozen=True)
class Cleaned:
    """The jobs whose folders were removed, those that were kept, and the bytes that are free again."""

    removed: Annotated[tuple[Name, ...], AtMost(MOST_ENTRIES)]
    kept: Annotated[tuple[Name, ...], AtMost(MOST_ENTRIES)]
    freed: Bytes
    results: Annotated[tuple[JobResults, ...], AtMost(MOST_ENTRIES)] = ()
    memory: LeftMemory | None = None
    """What ended programs of this user left in memory; it stays."""


CLEAN = Request("clean", Cleaned)
LEFT_MEMORY = Request("left_memory", LeftMemory)
