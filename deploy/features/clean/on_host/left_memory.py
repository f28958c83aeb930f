"""The files that ended processes left in this host's /dev/shm.

They stay until somebody removes them: a killed program cannot. Standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator

from ....core.wire.frames import Frame

SHM = "/dev/shm"  # noqa: S108  # only looked at
MOST_FILES = 1 << 14


class LeftMemory:
    """Answers the request for what is left since the start of a job."""

    def do_left_memory(self, request: Frame, payload: bytes) -> Frame:
        """What was made in the last `seconds`, and is in use by no process."""
        return left_in_memory(time.time() - request["seconds"])


def left_in_memory(since: float = 0.0) -> Frame:
    """The files of this user that were made since this time, and that no process uses."""
    files = dict(_files(since))
    if files:
        for used in _used():
            files.pop(used, None)
    return {
        "files": len(files),
        "bytes": sum(size for size, _ in files.values()),
        "largest": max(files.values(), default=(0, ""))[1],
    }


def _files(since: float) -> Iterator[tuple[tuple[int, int], tuple[int, str]]]:
    """Device and inode, size and name of each file of this user in /dev/shm."""
    with contextlib.suppress(OSError), os.scandir(SHM) as entries:
        for entry, _ in zip(entries, range(MOST_FILES)):
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
                if is_own and status.st_ctime >= since:
                    yield (status.st_dev, status.st_ino), (status.st_blocks * 512, os.fsdecode(entry.name))


def _used() -> Iterator[tuple[int, int]]:
    """Device and inode of the files in /dev/shm that processes of this user have open or mapped."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):  # it has ended, or is another user's
            if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
                continue
            with open(f"/proc/{pid}/maps", "rb") as maps:
                for line in maps:
                    if SHM.encode() in line:
                        device, inode = line.split()[3:5]
                        major, _, minor = device.partition(b":")
                        yield os.makedev(int(major, 16), int(minor, 16)), int(inode)
            for number in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{number}").startswith(SHM):
                        status = os.stat(f"/proc/{pid}/fd/{number}")
                        yield status.st_dev, status.st_ino
