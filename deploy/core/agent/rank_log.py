"""Copies the output of a rank to the agent in whole lines, and byte for byte to a file of this host.

Part of the program `rank.py`. Standard library only, and nothing is loaded late (there).
"""

from __future__ import annotations

import collections
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

TAIL_LINES, TAIL_WIDTH = 40, 2048  # the log has every line in full
LONGEST_LINE = 1 << 16  # a longer line is passed on in pieces
LEFT_BEHIND_SECONDS = 1.0  # for output of a program's children after its end
MOST_UNWRITTEN = 1 << 22  # bytes of a stream that wait for this host's disk
SILENT_DISK_SECONDS = 5.0  # without a byte written: such a disk is given up
SILENT_NOTE = b"\n[the rest is only where the job was launched: this disk did not answer]\n"

Send = Callable[["dict[str, Any]"], None]


class Log:
    """A log file on this host, which may end early. A separate thread writes it.

    A disk that is full, or does not answer, must not stop the reading of the program's pipe: the program
    would wait for space in it. The driver still gets the whole output, and the reason why the file ends.
    """

    def __init__(self, path: str, send: Send) -> None:
        self._path, self._send = path, send
        self._parts: collections.deque[bytes] = collections.deque()
        self._changed = threading.Condition()
        self._unwritten, self._quiet_since, self._ended = 0, 0.0, False
        threading.Thread(target=self._write_all, daemon=True).start()

    def write(self, content: bytes) -> None:
        """Queue content for the file. This waits for a slow disk, and gives up one that writes nothing."""
        with self._changed:
            self._await(MOST_UNWRITTEN)
            if content and not self._ended:
                if not self._unwritten:
                    self._quiet_since = time.monotonic()
                self._parts.append(content)
                self._unwritten += len(content)
                self._changed.notify_all()

    def begin_close(self) -> None:
        """Write the rest, and then close the file."""
        with self._changed:
            self._parts.append(b"")
            self._unwritten += 1
            self._quiet_since = time.monotonic()
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until the file is closed, unless the disk does nothing."""
        with self._changed:
            self._await(0)

    def _await(self, most: int) -> None:
        """Wait until only so many bytes are unwritten; end the file if its disk does nothing for a time."""
        while self._unwritten > most and not self._ended:
            left = self._quiet_since + SILENT_DISK_SECONDS - time.monotonic()
            if left <= 0:
                self._end(None)
            else:
                self._changed.wait(left)

    def _end(self, errno: int | None) -> None:
        """Write no more. `errno`: None for a disk that does not answer."""
        self._ended = True
        self._parts.clear()
        self._send({"event": "log-ended", "path": self._path, "errno": errno})

    def _write_all(self) -> None:
        try:
            with open(self._path, "ab", buffering=0) as file:
                while part := self._next():
                    while part:  # a disk that is nearly full accepts a part of it before the error
                        count = file.write(part)
                        part = part[count:]
                        self._note(count)
                if self._ended:
                    file.write(SILENT_NOTE)
            self._note(1)  # some network file systems report only at the end that the quota is used up
        except OSError as error:
            with self._changed:
                if not self._ended:
                    self._end(error.errno)
                self._changed.notify_all()

    def _next(self) -> bytes:
        """The next part; empty at the end."""
        with self._changed:
            while not self._parts and not self._ended:
                self._changed.wait()
            return b"" if self._ended else self._parts.popleft()

    def _note(self, count: int) -> None:
        with self._changed:
            self._unwritten -= count
            self._quiet_since = time.monotonic()
            self._changed.notify_all()


def pump(
    source: BinaryIO,
    log: Log,
    name: str,
    send: Send,
    tail: collections.deque[str],
    *,
    over: int,
    quiet: threading.Event,
) -> None:
    r"""Copy a stream to the agent in whole lines (ended by \n or \r), and byte for byte to its file.

    `quiet` is set at its end, or earlier when the program has ended and nothing more comes.
    """
    pending = b""
    for chunk in chunks(source, over):
        whole, pending = whole_lines(pending + chunk, flush=not chunk)
        if whole:
            text = whole.decode(errors="surrogateescape")
            tail.extend(line[-TAIL_WIDTH:] for line in text.splitlines(keepends=True)[-TAIL_LINES:])
            send({"event": "output", "stream": name, "text": text})
        log.write(chunk)
        if not chunk:
            quiet.set()


def chunks(source: BinaryIO, over: int) -> Iterator[bytes]:
    """The chunks of a stream as they come, and an empty one at its end, and when it is quiet.

    `over` can be read once the program has ended. Its output is in the pipe by then, but its children may
    hold the stream open without end; they would end by SIGPIPE if it was not read.
    """
    stream, until, chunk = source.fileno(), 0.0, b"begin"
    while chunk:
        ready, _, _ = select.select([stream, over], [], [])
        if stream not in ready:
            until = until or time.monotonic() + LEFT_BEHIND_SECONDS
            ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                yield b""
        chunk = os.read(stream, 1 << 16)
        yield chunk


def whole_lines(text: bytes, *, flush: bool) -> tuple[bytes, bytes]:
    """Split into whole lines and a rest; at the end, or if the rest is too long, the rest goes along."""
    end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    if flush or len(text) - end > LONGEST_LINE:
        end = len(text)
    return text[:end], text[end:]
