"""Describes processes that cannot be ended, by what the kernel shows without waiting for them.

Such a process may hold the lock of its memory: whoever reads /proc/PID/cmdline, environ, maps or mem would
wait too. Its name, state, system call and links of open files can always be read.
Standard library only, Python 3.9.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping

from ..wire.frames import Frame
from .disks import disk_of
from .processes import peek

MOST = 1 << 10  # of a host
MOST_DISKS = 3
# System calls whose first argument is a file: read, write, close, fstat, lseek, ioctl, pread64, pwrite64,
# readv, writev, sendfile, fsync, fdatasync, ftruncate, getdents, getdents64, sync_file_range, fallocate,
# preadv, pwritev. Their numbers are in the kernel's syscall_64.tbl and asm-generic/unistd.h.
_ON_A_FILE = {
    "x86_64": {0, 1, 3, 5, 8, 16, 17, 18, 19, 20, 40, 74, 75, 77, 78, 217, 277, 285, 295, 296},
    "aarch64": {63, 64, 57, 80, 62, 29, 67, 68, 65, 66, 71, 82, 83, 46, 61, 84, 47, 69, 70},
}
_NO_DISK = ("pipe:", "socket:", "anon_inode:", "/memfd:", "/dev/", "/proc/", "/sys/")


def described(pids: Iterable[int], ranks: Mapping[int, int | None], root: str = "") -> list[Frame]:
    """The fields of `StuckProcess` (core/hosts/stuck_processes.py) of each process that lives.

    `ranks`: the rank of each process that is of one. `root`: a folder with the files of another machine.
    """
    found = (_described(pid, ranks.get(pid), root) for pid in pids)
    return [frame for frame in found if frame][:MOST]


def _described(pid: int, rank: int | None, root: str) -> Frame:
    state, thread = _waiting_thread(pid, root)
    function = peek(f"{root}/proc/{pid}/task/{thread}/wchan", 64).strip()
    return {
        "pid": pid,
        "name": peek(f"{root}/proc/{pid}/comm", 64).strip(),
        "state": state,
        **({} if rank is None else {"rank": rank}),
        "waits_in": "" if function == "0" else function,
        "waits_for": "" if state == "R" else _file_of_call(pid, thread, root) or _disks(pid, root),
    }


def _waiting_thread(pid: int, root: str) -> tuple[str, str]:
    """The state of the process, and a thread of it that waits in the kernel; else its first thread."""
    threads = [str(pid)]
    with contextlib.suppress(OSError):
        threads += sorted(os.listdir(f"{root}/proc/{pid}/task"), key=int)
    stats = {thread: peek(f"{root}/proc/{pid}/task/{thread}/stat", 1024) for thread in threads}
    states = {thread: stat.rpartition(")")[2].strip()[:1] for thread, stat in stats.items()}
    waiting = next((thread for thread, state in states.items() if state == "D"), threads[0])
    return states[waiting], waiting


def _file_of_call(pid: int, thread: str, root: str) -> str:
    """The file of the system call in which a thread waits: `/mnt/x/a.pt on /mnt/x (ext4 /dev/loop0)`."""
    words = peek(f"{root}/proc/{pid}/task/{thread}/syscall", 256).split()
    if len(words) < 2 or not words[0].isdigit():
        return ""
    if int(words[0]) not in _ON_A_FILE.get(os.uname().machine, set()):
        return ""
    with contextlib.suppress(OSError, ValueError):
        path = os.readlink(f"{root}/proc/{pid}/fd/{int(words[1], 16)}")
        if path.startswith("/dev/"):
            return path
        if path.startswith("/"):
            return f"{path} on {disk_of(path, f'{root}/proc/{pid}/mountinfo')}"
    return ""


def _disks(pid: int, root: str) -> str:
    """The disks on which a process has files open, or its folder."""
    folder, paths = f"{root}/proc/{pid}", list[str]()
    with contextlib.suppress(OSError):
        paths.append(os.readlink(f"{folder}/cwd"))
        for name in sorted(os.listdir(f"{folder}/fd"), key=int):
            with contextlib.suppress(OSError):
                paths.append(os.readlink(f"{folder}/fd/{name}"))
    files = [path for path in paths if path.startswith("/") and not path.startswith(_NO_DISK)]
    disks = [*dict.fromkeys(disk_of(path, f"{folder}/mountinfo") for path in files)][:MOST_DISKS]
    return f"one of its disks: {', '.join(disks)}" if disks else ""
