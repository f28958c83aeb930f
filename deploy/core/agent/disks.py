"""A disk that does not answer: a file server that is gone, a file system that is frozen.

A process that uses it waits in the kernel, without an error and without end.
"""

from __future__ import annotations

import contextlib
import os
import threading

PROBE_SECONDS = 3.0
REMEDY = "look at dmesg of the host, and at the server of that file system"


class Probe:
    """Tests whether the disk of a folder answers: a thread writes a small file there."""

    def __init__(self, folder: str) -> None:
        self._folder, self._real = folder, folder
        self._answered = threading.Event()
        self._answered.set()

    def silent_disk(self) -> str:
        """The disk of the folder, if it does not answer within PROBE_SECONDS; else an empty text."""
        if self._answered.is_set():  # else the last probe still waits
            self._answered.clear()
            threading.Thread(target=self._ask, daemon=True).start()
        return "" if self._answered.wait(PROBE_SECONDS) else disk_of(self._real)

    def _ask(self) -> None:
        path = ""
        with contextlib.suppress(OSError):  # an error is an answer
            self._real = os.path.realpath(self._folder)
            path = os.path.join(self._real, f".probe-{os.getpid()}")
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        with contextlib.suppress(OSError):
            os.unlink(path)
        self._answered.set()


def unanswered(disk: str) -> str:
    """`/home (nfs4 files:/home) does not answer; look at dmesg there, ...`."""
    return f"the disk {disk} does not answer; {REMEDY}"


def disk_of(path: str, table: str = "/proc/self/mountinfo") -> str:
    """`/home (nfs4 files:/home)`: the file system of a path, from proc(5) alone: a stat(2) might wait."""
    longest = ("", "", "")
    with contextlib.suppress(OSError), open(table, "rb") as file:
        for line in file:
            before, _, after = os.fsdecode(line).partition(" - ")
            fields, device = before.split(" "), after.split(" ")
            if len(fields) < 5 or len(device) < 2:
                continue
            point = _plain(fields[4])
            if (path + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(longest[0]):
                longest = (point, device[0], _plain(device[1]))
    return f"{longest[0]} ({longest[1]} {longest[2]})" if longest[0] else path


def _plain(text: str) -> str:
    """A text of the table without its escapes."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
