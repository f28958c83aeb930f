"""One job at a time writes to a folder: a lock of the kernel, which ends with the process that holds it.

An OFD lock of fcntl(2). NFS has it. A lock of POSIX would end when this process closes any other descriptor
of the file, as a copy of the folder does. A forked child, such as a worker of a DataLoader, closes its
descriptor, so the lock does not outlive its rank.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from pathlib import Path

FILE = ".lock"
_LINE = 200  # bytes of the file that are read
_WHOLE_FILE = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # struct flock
_held: dict[Path, int] = {}  # open files; to close one is to give its lock up


def hold(folder: Path, job: str, restart: int) -> str:
    """Lock `folder` for this process; returns the job that has it, or "" once it is locked.

    An attempt of the same `job` before this `restart` is no other job: its host may be lost, and a file
    server may keep its lock for minutes. Where the file system has no locks, this does nothing. Raises
    OSError.
    """
    path = (folder / FILE).resolve()
    if path in _held:
        return ""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE_FILE)
    except (BlockingIOError, PermissionError):
        said = os.read(file, _LINE).decode(errors="replace")
        os.close(file)
        holder, _, attempt = said.strip().rpartition(" restart ")
        if job and holder.startswith(f"job {job} ") and attempt.isdecimal() and int(attempt) < restart:
            return ""
        return "".join(letter for letter in holder if letter.isprintable()) or "another job"
    except OSError:
        os.close(file)
        return ""
    name = f"job {job} " if job else ""
    os.ftruncate(file, 0)
    os.write(file, f"{name}(process {os.getpid()} on {socket.gethostname()}) restart {restart}\n".encode())
    _held[path] = file
    return ""


def release() -> None:
    """Give up every lock of this process."""
    while _held:
        _, file = _held.popitem()
        os.close(file)


os.register_at_fork(after_in_child=release)
