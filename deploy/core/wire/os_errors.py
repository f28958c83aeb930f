"""Explains errors of the operating system, with remedies: one table, for hosts and for the driver."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd

# The fault, and the remedy; {path} is the file or folder, {user} the user who tried, {mount} the mount point
# of its file system.
_TABLE = {
    errno.ENOSPC: ("no space left on the disk of {path}", "make room there: df -h {mount}"),
    errno.EDQUOT: (
        "{user}'s disk quota for {path} is used up",
        "remove files there, or have it raised (file system {mount})",
    ),
    errno.EACCES: ("{user} may not use {path}", "see who may: namei -l {path}"),
    errno.EPERM: ("{user} may not do that to {path}", "see who may: namei -l {path}; lsattr -d {path}"),
    errno.EROFS: (
        "{path} is on a file system that can only be read",
        "mount {mount} for writing; if it was, dmesg may say that its disk has errors",
    ),
    errno.ENOENT: ("there is no {path}", ""),
    errno.ENOTDIR: ("a file is where {path} needs a folder", "move it away: namei -l {path}"),
    errno.EEXIST: ("{path} exists already, as something else", "move it away: ls -ld {path}"),
    errno.EISDIR: ("{path} is a folder", ""),
    errno.ELOOP: ("the links of {path} lead to each other", "see where: namei -l {path}"),
    errno.ENAMETOOLONG: ("the name {path} is too long", ""),
    errno.ENOEXEC: ("{path} is not a program for this machine", "look at its first line: head -c 99 {path}"),
    errno.EIO: ("the disk of {path} gives errors", "look at dmesg"),
    errno.ESTALE: ("{path} is on a network file system that is gone", "mount it again"),
    errno.EPIPE: ("broken pipe", ""),
    errno.EMFILE: ("only {files} open files are allowed", "raise nofile for that login: ulimit -n"),
    errno.ENFILE: ("the machine has too many open files", "raise fs.file-max, or end programs there"),
    errno.EAGAIN: (
        "no more processes are allowed",
        "raise nproc (ulimit -u), or the pids limit of its container or service",
    ),
    errno.ENOMEM: ("no memory is left", "end other programs there, or raise its limit"),
}
_NO_INODES = ("the disk of {path} can hold no more files", "remove some: df -i {mount}")
_REPLACED = "its Python lacks a part of the standard library, or was replaced in the meantime"
_NO_MORE_THREADS = "can't start new thread"  # CPython's RuntimeError for EAGAIN of pthread_create(3)


def explain(error: BaseException) -> str:
    """A sentence: `no space left on the disk of /home/ml; make room there: df -h /home`.

    An error that was raised with a sentence keeps that sentence.
    """
    if isinstance(error, RuntimeError) and str(error) == _NO_MORE_THREADS:
        return _sentence(*_TABLE[errno.EAGAIN], "")
    if type(error) is ValueError or (isinstance(error, OSError) and error.errno is None):
        return str(error)
    if not isinstance(error, OSError):
        kind = _REPLACED if isinstance(error, ImportError) else type(error).__name__
        return f"{kind}: {error}"
    path = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else ""
    if error.errno == errno.ENOSPC and path and not _inodes_left(path):
        return _sentence(*_NO_INODES, path)
    if error.errno in _TABLE and (path or "{path}" not in _TABLE[error.errno][0]):
        return _sentence(*_TABLE[error.errno], path)
    reason = error.strerror or str(error)
    return f"{path}: {reason}" if path else reason


def naming(error: OSError, path: str) -> OSError:
    """The error; its path is added if it has none, as after a call on an open file."""
    if error.filename is None and error.errno is not None:
        error.filename = path
    return error


def _sentence(fault: str, remedy: str, path: str) -> str:
    text = f"{fault}; {remedy}" if remedy else fault
    mount = mount_of(path) if "{mount}" in text else ""
    return text.format(path=path, user=_user(), files=_open_files(), mount=mount)


def mount_of(path: str) -> str:
    """The mount point of a path's file system; the path need not exist."""
    path = os.path.realpath(path)
    while not os.path.ismount(path):
        path = os.path.dirname(path)
    return path


def _inodes_left(path: str) -> bool:
    """Whether another file could be made; True if that is unknown, or inodes are not counted (btrfs)."""
    while True:
        with contextlib.suppress(OSError):
            status = os.statvfs(path)
            return status.f_favail > 0 or status.f_files == 0
        if path in {"/", ""}:
            return True
        path = os.path.dirname(path)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"


def _open_files() -> int:
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
