"""Large files by their SHA-256, which other hosts can read while they still arrive (peers.py).

The name of a complete file is its digest; until then it is `DIGEST.part`. A file is accepted only if its
digest is right.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...wire.durable import keep_if_intact
from ...wire.files import digest as sha256

CHUNK = 1 << 18
WAIT_SECONDS = 15.0  # for a byte that the sending host has not received yet


class Blobs:
    """The files of one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._changed = threading.Condition()

    def path(self, digest: str) -> Path:
        """The path of a complete file."""
        if not (len(digest) == 64 and digest.isalnum()):
            raise ValueError(f"not a SHA-256: {digest}")
        return self.root / digest

    def size(self, digest: str) -> int:
        """The bytes of a file that have arrived."""
        for path in (self.path(digest), self._part(digest)):
            with contextlib.suppress(OSError):
                return path.stat().st_size
        return 0

    def intact_size(self, digest: str) -> int:
        """The bytes of a file from an earlier push; a complete file that was damaged is removed.

        Each push calls this before it uses a file. So files need not be synced when they arrive.
        """
        if self.has(digest):
            keep_if_intact(self.path(digest), digest)
        return self.size(digest)

    def has(self, digest: str) -> bool:
        """Whether the whole file has arrived."""
        return self.path(digest).exists()

    def append(self, digest: str, offset: int, content: bytes | memoryview) -> None:
        """Append bytes to a file; ValueError if some before `offset` are missing.

        An agent with the same home, or a second command, may write the same file. So bytes that are already
        present are skipped; `complete` checks the whole file.
        """
        if self.has(digest):
            return
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self._part(digest), "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            have = file.seek(0, os.SEEK_END)
            if have < offset:
                raise ValueError(f"{have} bytes have arrived, and these begin at {offset}")
            file.write(content[have - offset :])
        with self._changed:
            self._changed.notify_all()

    def complete(self, digest: str) -> None:
        """Accept a file that has arrived; if its digest is wrong, remove it and raise ValueError."""
        try:
            if not self.has(digest) and sha256(self._part(digest)) != digest:
                self._part(digest).unlink()
                raise ValueError("it was damaged on the way, and must be sent again")
            os.replace(self._part(digest), self.path(digest))
        except FileNotFoundError:
            if not self.has(digest):
                raise
        with self._changed:
            self._changed.notify_all()

    def read(self, digest: str, offset: int, size: int) -> Iterator[bytes]:
        """The bytes from an offset to the end, as they arrive; ends early when none comes for a while."""
        heard = time.monotonic()
        while offset < size and time.monotonic() - heard < WAIT_SECONDS:
            if content := self._some(digest, offset):
                offset, heard = offset + len(content), time.monotonic()
                yield content
            else:
                with self._changed:
                    self._changed.wait(0.2)

    def forget(self, digests: Sequence[str]) -> None:
        """Remove files that are no longer needed."""
        for digest in digests:
            with contextlib.suppress(FileNotFoundError):
                self.path(digest).unlink()

    def _some(self, digest: str, offset: int) -> bytes:
        for path in (self._part(digest), self.path(digest)):
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                file.seek(offset)
                return file.read(CHUNK)
        return b""

    def _part(self, digest: str) -> Path:
        return self.path(digest).with_suffix(".part")
