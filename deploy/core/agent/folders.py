"""The folders of a job on this host: its own, and the private one with sockets and temporary files of ranks.

The private folder is removed with the agent. A killed agent leaves it, but no longer holds the lock in it:
the next agent of the same user on this host removes the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

from ..wire.folders import make_private

PREFIX, LOCK = "muster-", "lock"
_NAME = re.compile(PREFIX + r"[a-z0-9_]{8}")
MOST_ENTRIES = 1 << 14
"""The most entries of the host's temporary folder that are checked."""
MOST_LINKS = 10
"""The most links that a message names."""


def make_private_folder() -> Path:
    """A new folder; the lock in it is held as long as this process lives."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    draft = folder / f"{LOCK}.new"
    # Never closed. Under this name no sweep takes it for the lock of a killed agent.
    fcntl.flock(os.open(draft, os.O_CREAT | os.O_RDWR, 0o600), fcntl.LOCK_EX)
    draft.rename(folder / LOCK)
    return folder


def sweep_in_thread() -> None:
    """Remove the folders of killed agents, beside the launch: they may have much content."""
    threading.Thread(target=sweep, args=(Path(tempfile.gettempdir()),), daemon=True).start()


def sweep(temporary: Path) -> None:
    """Remove folders of this user's killed agents from a temporary folder. Others may write there too."""
    with contextlib.suppress(OSError), os.scandir(temporary) as entries:
        for entry, _ in zip(entries, range(MOST_ENTRIES)):
            if _NAME.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_left(entry.path)


def _remove_if_left(folder: str) -> None:
    """Remove a folder whose lock is free. OSError for one that is not this user's, or is in use."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(opened)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
            return
        lock = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW, dir_fd=opened)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in os.listdir(opened):
                if name != LOCK:  # last, so that an interrupted sweep is continued
                    _remove(name, opened)
            os.unlink(LOCK, dir_fd=opened)
            os.rmdir(folder)
        finally:
            os.close(lock)
    finally:
        os.close(opened)


def _remove(name: str, opened: int) -> None:
    """Remove a file, or a folder with its content, and follow no link. `opened`: its folder."""
    if stat.S_ISDIR(os.stat(name, dir_fd=opened, follow_symlinks=False).st_mode):
        shutil.rmtree(f"/proc/self/fd/{opened}/{name}")  # it goes through descriptors
    else:
        os.unlink(name, dir_fd=opened)


def link_kept(kept: Iterable[tuple[str, str]]) -> None:
    """Make the folders that outlive the job, and the links to them in its code: (link, folder)."""
    for link, folder in kept:
        make_private(Path(folder))
        os.makedirs(os.path.dirname(link), exist_ok=True)
        try:
            os.symlink(folder, link)
        except FileExistsError:
            if not (os.path.islink(link) and os.readlink(link) == folder):
                raise OSError(
                    f"{link} is no link to {folder} any more: an earlier attempt of the job has replaced the "
                    "link that --keep made; let the program remove only what is in the folder"
                ) from None


def require_targets(links: Iterable[tuple[str, str]]) -> None:
    """OSError names the links of the code, (path, target), whose target does not exist on this host."""
    absent = [f"{path} -> {target}" for path, target in links if not os.path.exists(target)]
    if absent:
        more = [f"and {len(absent) - MOST_LINKS} more"] if len(absent) > MOST_LINKS else []
        raise OSError(
            f"links of the code have no target here: {', '.join([*absent[:MOST_LINKS], *more])}; mount the "
            "target on this host, list the link in .musterignore, or bring the files with muster data push"
        )
