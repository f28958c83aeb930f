"""Lets a single driver of a job use this host: the one with the highest term that has claimed it so far.

A standby driver has a higher term than the driver before it. The agent of a driver holds the lock as long as
it lives, and the kernel releases the lock at any end. The file keeps the term, so that a driver that stood
still is refused also after the newer one has ended.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from ...common.folders import make_private
from ...common.frames import Frame
from ...common.paths import MusterPaths

WAIT_SECONDS = 3.0
"""An agent whose driver is gone needs a moment to end what it has started."""


class Fence:
    """Claims this host for a driver."""

    def __init__(self, home: Path) -> None:
        self._paths = MusterPaths(str(home))
        self._held: int | None = None

    def do_claim(self, request: Frame, payload: bytes) -> Frame:
        """Hold this host for a driver with this term; answers a newer driver's term, else 0.

        `keep`: the driver has claimed more than half of the hosts, so older ones are refused from now on.
        """
        opened = self._held if self._held is not None else self._open(request)
        self._held = None
        newer = _newer(opened, request["term"])
        if not newer:
            _lock(opened)
            newer = _newer(opened, request["term"])  # it may have changed until then
        if newer:
            os.close(opened)
            return {"newer": newer}
        self._held = opened
        if request["keep"]:
            os.pwrite(opened, b"%020d" % request["term"], 0)
            os.fsync(opened)
        return {"newer": 0}

    def _open(self, request: Frame) -> int:
        paths = self._paths.job(request["name"])
        make_private(*map(Path, (self._paths.root, self._paths.jobs, paths.folder)))
        return os.open(paths.term(request["host"]), os.O_CREAT | os.O_RDWR, 0o600)


def _newer(opened: int, term: int) -> int:
    """The term in the file, if it is higher than this one; else 0."""
    known = int(os.pread(opened, 32, 0) or b"0")
    return known if known > term else 0


def _lock(opened: int) -> None:
    """Lock a file. OSError if the agent of another driver holds it."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(opened)
                raise OSError("another driver of the job still uses this host") from None
            time.sleep(0.05)
        else:
            return
