"""Large files by their SHA-256; a host passes a file on to other hosts while it still arrives.

The name of a complete file is its digest; until then it is `DIGEST.part`. A host that wants a file connects
to a host that has it, or will have it, sends the driver's secret word of this push, and reads on from where
it stopped. So a chain of hosts is as fast as its slowest link, and an interrupted transfer goes on. A file is
accepted only if its digest is right.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import hmac
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ...common.files import digest as sha256
from ..host.rendezvous import PORTS, listen_everywhere

CHUNK = 1 << 18
WAIT_SECONDS = 15.0  # for a byte that the sending host has not received yet
CONNECT_SECONDS = 5.0
MOST_UNPROVEN = 64  # callers that have not sent the secret word yet


class Blobs:
    """The files of one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._changed = threading.Condition()

    def path(self, digest: str) -> Path:
        """Where a complete file is, or will be."""
        if not (len(digest) == 64 and digest.isalnum()):
            raise ValueError(f"not a SHA-256: {digest}")
        return self.root / digest

    def size(self, digest: str) -> int:
        """How many bytes of a file are here."""
        for path in (self.path(digest), self._part(digest)):
            with contextlib.suppress(OSError):
                return path.stat().st_size
        return 0

    def has(self, digest: str) -> bool:
        """Whether the whole file is here."""
        return self.path(digest).exists()

    def append(self, digest: str, offset: int, content: bytes) -> None:
        """Append bytes to what is here; ValueError if some before `offset` are missing.

        An agent with the same home, or a second command, may write the same file. So bytes that are already
        here are skipped; `complete` checks the whole file.
        """
        if self.has(digest):
            return
        self.root.mkdir(parents=True, exist_ok=True)
        with open(self._part(digest), "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            have = file.seek(0, os.SEEK_END)
            if have < offset:
                raise ValueError(f"{have} bytes are here, and these are from {offset} on")
            file.write(content[have - offset :])
        with self._changed:
            self._changed.notify_all()

    def complete(self, digest: str) -> None:
        """Accept a file that has arrived; if its digest is wrong, remove it and raise ValueError."""
        try:
            if not self.has(digest) and sha256(self._part(digest)) != digest:
                self._part(digest).unlink()
                raise ValueError("it was damaged on the way, and has to come again")
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
        """Remove files that are loaded."""
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


class Source(NamedTuple):
    """A host that serves a file. Requests name the host: each container engine has its own 172.17.0.1."""

    host: str
    address: str
    port: int


class Server:
    """Serves files to other hosts of this push."""

    def __init__(self, blobs: Blobs, host: str, word: str) -> None:
        self.blobs, self.host, self._word = blobs, host, word
        self.port, self._listener = _listen()
        self._unproven: collections.deque[socket.socket] = collections.deque()
        """Callers that have not sent the secret word; each has a thread."""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                self._unproven.append(caller)
                if len(self._unproven) > MOST_UNPROVEN:
                    self._hang_up()
                threading.Thread(target=self._answer, args=(caller,), daemon=True).start()

    def _hang_up(self) -> None:
        """Disconnect the oldest caller that has sent nothing: a host of this push sends the word at once."""
        with contextlib.suppress(OSError, IndexError):
            self._unproven.popleft().shutdown(socket.SHUT_RDWR)

    def _answer(self, caller: socket.socket) -> None:
        with caller, contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            try:
                caller.settimeout(CONNECT_SECONDS)
                asked = json.loads(caller.makefile("rb").readline(4096))
                caller.settimeout(WAIT_SECONDS)
            finally:
                with contextlib.suppress(ValueError):  # `_hang_up` has removed it
                    self._unproven.remove(caller)
            if hmac.compare_digest(str(asked["word"]), self._word) and asked["host"] == self.host:
                for content in self.blobs.read(asked["digest"], int(asked["offset"]), int(asked["size"])):
                    caller.sendall(content)


class Wanted(NamedTuple):
    """A file, its size in bytes, and the secret word that other hosts ask for."""

    digest: str
    size: int
    word: str


def pull(blobs: Blobs, wanted: Wanted, sources: Sequence[Source], tell: Callable[[int], None]) -> None:
    """Fetch the rest of a file, from one source after the other; OSError if none of them has all."""
    reasons = []
    for source in [] if blobs.has(wanted.digest) else sources:
        try:
            _pull_from(source, blobs, wanted, tell)
            reasons.append(f"{source.host}: has only {blobs.size(wanted.digest)} of {wanted.size} bytes")
        except OSError as error:
            reasons.append(f"{source.host} at {source.address} port {source.port}: {error.strerror or error}")
        if blobs.size(wanted.digest) == wanted.size:
            break
    if blobs.size(wanted.digest) < wanted.size:
        raise OSError("; ".join(reasons))
    blobs.complete(wanted.digest)


def _pull_from(source: Source, blobs: Blobs, wanted: Wanted, tell: Callable[[int], None]) -> None:
    with socket.create_connection((source.address, source.port), CONNECT_SECONDS) as connection:
        connection.settimeout(WAIT_SECONDS + CONNECT_SECONDS)
        offset = blobs.size(wanted.digest)
        asked = {**wanted._asdict(), "host": source.host, "offset": offset}
        connection.sendall(json.dumps(asked).encode() + b"\n")
        while offset < wanted.size and (content := connection.recv(CHUNK)):
            blobs.append(wanted.digest, offset, content[: wanted.size - offset])
            offset += len(content)
            tell(offset)


def _listen() -> tuple[int, socket.socket]:
    for port in reversed(PORTS):  # the rendezvous of a job takes a random port of the same range
        with contextlib.suppress(OSError):
            return port, listen_everywhere(port)
    raise OSError(f"no free port between {PORTS.start} and {PORTS.stop - 1}")
