"""Code on this host: contents by their SHA-256, a copy of the tree for each job, removal of old copies."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .durable import keep_if_intact, read_intact, remove, sync, write_atomically
from .frames import Frame
from .os_errors import naming
from .paths import JobPaths

OLD_JOBS_KEPT = 20
DRAFTS = ".new-"
"""The start of the name of a folder in which contents arrive."""


class DamagedError(OSError):
    """Contents of the store that were lost or damaged; they are removed, so that they are sent again."""

    def __init__(self, store: Path, digests: Sequence[str]) -> None:
        files = "1 file" if len(digests) == 1 else f"{len(digests)} files"
        super().__init__(f"{files} of the code were damaged in {store}, and are removed there; try again")
        self.digests = tuple(digests)


class Store:
    """Files by their SHA-256 under ~/.muster/store: every content travels to a host once.

    `check_out` compares the SHA-256 of each content, and so detects loss and damage on the disk.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        return self.root / digest[:2] / digest[2:]

    def missing(self, digests: list[str], *, verify: bool = False) -> list[str]:
        """The digests of missing contents. `verify`: read the others, and remove damaged ones."""
        wanted = {*digests}
        if verify:
            return sorted(digest for digest in wanted if not keep_if_intact(self.path(digest), digest))
        return sorted(digest for digest in wanted if not self.path(digest).is_file())

    def add(self, archive: bytes) -> None:
        """Store the members of a tar archive, which are named by their digest; each is verified.

        All are written, then synced at once, then renamed: thousands of small files are synced as one. The
        names are not synced: a content whose name is lost is sent again.
        """
        import tarfile

        self.root.mkdir(parents=True, exist_ok=True)
        drafts = Path(tempfile.mkdtemp(prefix=DRAFTS, dir=self.root))
        try:
            with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as tar:
                for member in tar:
                    source = tar.extractfile(member)
                    content = source.read() if source else b""
                    if hashlib.sha256(content).hexdigest() != member.name:
                        raise OSError(f"content of {member.name} was damaged on the way")
                    write_atomically(drafts / member.name, content, durable=False)
            made = sorted(drafts.iterdir())
            sync(made)
            for draft in made:
                self._place(draft)
        except tarfile.TarError as error:
            raise OSError(f"the contents were damaged on the way: {error}") from None
        except OSError as error:
            raise naming(error, str(self.root)) from None
        finally:
            shutil.rmtree(drafts, ignore_errors=True)

    def _place(self, draft: Path) -> None:
        path = self.path(draft.name)
        path.parent.mkdir(exist_ok=True)
        if path.is_dir():
            remove(path)
        os.replace(draft, path)

    def do_missing(self, request: Frame, payload: bytes) -> Frame:
        return {"missing": self.missing(request["digests"], verify=request.get("verify", False))}

    def do_store(self, request: Frame, payload: bytes) -> Frame:
        self.add(payload)
        return {}

    def check_out(self, files: list[list[Any]], target: Path, before: int | None = None) -> None:
        """Put each (path, executable, digest, link) under the target; files are copies that the job owns.

        `DamagedError` if contents do not match their digests. The copies are not synced: no process of
        the job outlives a crash. `before`: when an earlier attempt had its copies, in ns; a file
        that its program changed later stays, and so does an intact one.
        """
        damaged: list[str] = []
        made: set[str] = set()
        for name, executable, digest, link in files:
            path = target / name
            if before is not None and is_behind_link(target, name):
                continue
            if (folder := os.path.dirname(path)) not in made:
                os.makedirs(folder, exist_ok=True)
                made.add(folder)
            if link is not None:
                with contextlib.suppress(FileExistsError):
                    path.symlink_to(link)
            elif (content := read_intact(self.path(digest), digest)) is None:
                damaged.append(digest)
            elif before is None or not _stays(path, content, before):
                write_atomically(path, content, 0o700 if executable else 0o600, durable=False)
        if damaged:
            raise DamagedError(self.root, damaged)


def is_behind_link(top: Path, name: str) -> bool:
    """Whether a job has replaced a folder of its path by a link: what is behind it is not the job's."""
    parent = os.path.join(os.path.realpath(top.parent), top.name, os.path.dirname(name))
    return os.path.realpath(parent) != os.path.normpath(parent)


def _stays(path: Path, content: bytes, before: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_ctime_ns > before or path.read_bytes() == content
    return False


def sweep_old_jobs(jobs: Path) -> None:
    """Remove the code of old jobs that no agent or driver holds; the files of the job itself stay."""
    for folder in sorted((path for path in jobs.iterdir() if path.is_dir()), reverse=True)[OLD_JOBS_KEPT:]:
        with contextlib.suppress(OSError, ValueError), every_lock_held(folder):
            paths = JobPaths(str(folder))
            for name, _, digest, link in json.loads(Path(paths.code_list).read_text()):
                path = Path(paths.code, name)
                if is_behind_link(Path(paths.code), name):
                    continue
                with contextlib.suppress(OSError):  # the job has removed or replaced it
                    content = os.readlink(path) if link else hashlib.sha256(path.read_bytes()).hexdigest()
                    if content == (link or digest):
                        path.unlink()
            os.unlink(paths.code_list)


@contextlib.contextmanager
def every_lock_held(folder: Path) -> Iterator[None]:
    """Hold every lock of a job's folder; OSError if an agent or a driver holds a lock."""
    with contextlib.ExitStack() as held:
        for lock in (*folder.glob("lock.*"), *Path(JobPaths(str(folder)).run).glob("lock.*")):
            descriptor = os.open(lock, os.O_RDWR)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
