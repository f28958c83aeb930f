"""The request for what ended processes left in the memory of a host."""

from __future__ import annotations

from ...core.connect.requests.request import Request
from ...core.decode import lazy_dataclass
from ...core.hosts.bounds import Bytes, Count, Path
from ...core.text.terminal import harmless
from ...core.text.text import clip, count, size

LONGEST_NAME = 80


@lazy_dataclass(frozen=True)
class LeftMemory:
    """Files in /dev/shm, of which `largest` is one, and segments of System V that no process uses."""

    files: Count
    bytes: Bytes
    largest: Path
    segments: Count
    segment_bytes: Bytes

    @property
    def described(self) -> str:
        """`2 files in /dev/shm, 64 MiB (largest: sem.a), 1 System V segment, 1 MiB`; empty for nothing."""
        parts = []
        if self.files:
            largest = clip(harmless(self.largest), LONGEST_NAME)
            parts.append(f"{count(self.files, 'file')} in /dev/shm, {size(self.bytes)} (largest: {largest})")
        if self.segments:
            parts.append(f"{count(self.segments, 'System V segment')}, {size(self.segment_bytes)}")
        return ", ".join(parts)


LEFT_MEMORY = Request("left_memory", LeftMemory)
