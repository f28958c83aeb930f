"""Hints about a job that ended because a disk, or the memory that processes share as files, was full."""

from __future__ import annotations

import re

from ..console.terminal import harmless
from ..launch.result import LaunchResult
from .file_hints import last_lines

_FULL = re.compile(r"No space left on device(?:[^'\n]*'(/[^'\n]+)')?")
_SHARED = re.compile(r"/dev/shm|</torch_|out of shared memory")  # noqa: S108  # a message of the rank
_BUS = re.compile(r"Bus error|SIGBUS")


def full_disk(result: LaunchResult) -> str:
    """A hint about a full disk or a full /dev/shm of the host of the failure; else empty."""
    if not (failure := result.failure) or not failure.host:
        return ""
    look = f"muster run --include {failure.host} -- df -h"
    for line in last_lines(result):
        if _BUS.search(line) or (_FULL.search(line) and _SHARED.search(line)):
            return _shared_memory(failure.host, look)
        if match := _FULL.search(line):
            disk = (
                f"the disk of {harmless(match[1])} on {failure.host}"
                if match[1]
                else f"a disk of {failure.host}"
            )
            return f"{disk} is full: {look}"
    return _shared_memory(failure.host, look) if _BUS.search(failure.reason) else ""


def _shared_memory(host: str, look: str) -> str:
    """A write to a mapped page that has no room ends in SIGBUS."""
    less = "data loaders with fewer workers use less, --shm-size of a container makes it larger"
    return f"most likely /dev/shm of {host} is full: {look} /dev/shm; {less}"
