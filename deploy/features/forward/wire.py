"""One end of a connection that is passed on through an agent: of the user's machine, or of the host.

Both ends are the same. A part is acknowledged when it is written, and at most WINDOW parts are not. So no
side holds much, and a connection that is not read delays no other.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from queue import SimpleQueue

CHUNK_BYTES = 1 << 16  # bytes
WINDOW = 8  # parts: 10 MB a second at 50 ms


class Stream:
    """Reads a connection and passes its parts on, and writes those of the other end. The last is empty.

    These report to the other end: `pass_on` a part, `taken` that a part is written, `broken` that no more
    can be. `over`: called once, when both directions have ended.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        pass_on: Callable[[bytes], object],
        taken: Callable[[], object],
        broken: Callable[[], object],
        over: Callable[[], object],
    ) -> None:
        self._connection = connection
        self._pass_on, self._taken, self._broken, self._over = pass_on, taken, broken, over
        self._parts: SimpleQueue[bytes] = SimpleQueue()
        self._room = threading.Semaphore(WINDOW)
        self._lock, self._open, self._is_broken = threading.Lock(), 2, False

    def start(self) -> None:
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def put(self, part: bytes) -> None:
        """Write a part of the other end, as soon as its turn comes; ValueError for more than it may send."""
        if self._parts.qsize() > WINDOW:
            raise ValueError(f"a stream of more than {WINDOW} parts that are not taken")
        self._parts.put(part)

    def acknowledge(self) -> None:
        """The other end has written a part."""
        self._room.release()

    def close(self) -> None:
        """End both directions at once."""
        self._is_broken = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._room.release()
        self._parts.put(b"")

    def _read(self) -> None:
        part = b"-"
        while part and not self._is_broken:
            self._room.acquire()
            try:
                part = self._connection.recv(CHUNK_BYTES)
            except OSError:  # reset
                part = b""
            self._pass_on(part)
        self._end()

    def _write(self) -> None:
        while part := self._parts.get():
            if not self._is_broken:
                try:
                    self._connection.sendall(part)
                except OSError:
                    self._broken()
                    self.close()
            self._taken()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open:
                return
        self._connection.close()
        self._over()
