"""The limits of a host that a job needs to start; `muster check` examines the same."""

from __future__ import annotations

import contextlib
import os
import resource

# mpirun 5.0 with two ranks on a host starts with 128 open files; with 64 it hangs, without a message.
LEAST_FILES = 128
# A Unix socket's path has 107 bytes (unix(7)); below TMPDIR the agent's is muster-xxxxxxxx/agent.
LONGEST_TMPDIR = 107 - len("/muster-xxxxxxxx/agent")
LEAST_INODES = 1000


def open_files() -> int:
    """The limit of open files of a job. A limit below LEAST_FILES is raised as far as possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < LEAST_FILES:
        wanted = LEAST_FILES if hard < 0 else min(hard, LEAST_FILES)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft


def is_noexec(path: str) -> bool:
    """Whether the file system of a path is mounted noexec: it starts no programs."""
    return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)


def require_fit(folder: str, temporary: str) -> None:
    """ValueError if a job in this folder would not start on this host, or would hang."""
    if is_noexec(folder):
        raise ValueError(
            f"{folder} is on a file system that starts no programs (noexec), and muster-rank is there; "
            "mount it without noexec, or give that login another home"
        )
    length = len(os.fsencode(temporary))
    if length > LONGEST_TMPDIR:
        raise ValueError(
            f"TMPDIR is too long for the path of a Unix socket: {length} bytes, at most {LONGEST_TMPDIR}: "
            f"{temporary}; set a shorter one for that login"
        )
    files = open_files()
    if 0 <= files < LEAST_FILES:
        raise ValueError(
            f"only {files} open files are allowed, a launcher needs {LEAST_FILES}; raise nofile for that "
            "login in /etc/security/limits.d or for sshd (ulimit -n)"
        )
