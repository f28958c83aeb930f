"""Code on this host: contents by their hash, a copy of the tree for each job, removal of old copies."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .frames import Frame
from .os_errors import naming
from .paths import JobPaths

OLD_JOBS_KEPT = 20


class Store:
    """Files by their SHA-256 under ~/.muster/store: every content travels to a host once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """The path where a content is, or would be."""
        return self.root / digest[:2] / digest[2:]

    def missing(self, digests: list[str]) -> list[str]:
        """Those of the digests that are not here yet."""
        return sorted({digest for digest in digests if not self.path(digest).is_file()})

    def add(self, archive: bytes) -> None:
        """Take in a tar archive whose members are named by their digest; each is verified."""
        import tarfile  # noqa: PLC0415  # most launches bring nothing new

        try:
            with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as tar:
                for member in tar:
                    source = tar.extractfile(member)
                    content = source.read() if source else b""
                    if hashlib.sha256(content).hexdigest() != member.name:
                        raise OSError(f"content of {member.name} was damaged on the way")
                    write_atomically(self.path(member.name), content, 0o600)
        except tarfile.TarError as error:
            raise OSError(f"the contents were damaged on the way: {error}") from None

    def do_missing(self, request: Frame, payload: bytes) -> Frame:
        """Which contents the driver has to send."""
        return {"missing": self.missing(request["digests"])}

    def do_store(self, request: Frame, payload: bytes) -> Frame:
        """Take in contents."""
        self.add(payload)
        return {}

    def check_out(self, files: list[list[Any]], target: Path) -> None:
        """Put each (path, executable, digest, link) under the target; files are copies that the job owns."""
        for name, executable, digest, link in files:
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if link is not None:
                with contextlib.suppress(FileExistsError):
                    path.symlink_to(link)
                continue
            with open(self.path(digest), "rb") as source:
                write_atomically(path, source.read(), 0o700 if executable else 0o600)


def write_atomically(path: Path, content: bytes, mode: int) -> None:
    """Write a temporary file and rename it: readers see all or nothing, also on a home that hosts share."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=str(path.parent))
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        os.chmod(temporary, mode)
        os.replace(temporary, str(path))
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError):
            naming(error, str(path))
        raise


def sweep_old_jobs(jobs: Path) -> None:
    """Remove the code of old jobs that no agent or driver holds; whatever a job wrote itself stays."""
    for folder in sorted((path for path in jobs.iterdir() if path.is_dir()), reverse=True)[OLD_JOBS_KEPT:]:
        with contextlib.suppress(OSError, ValueError), held_by_nobody(folder):
            paths = JobPaths(str(folder))
            for name, _, digest, link in json.loads(Path(paths.code_list).read_text()):
                path = Path(paths.code, name)
                with contextlib.suppress(OSError):  # the job has removed or replaced it
                    content = os.readlink(path) if link else hashlib.sha256(path.read_bytes()).hexdigest()
                    if content == (link or digest):
                        path.unlink()
            os.unlink(paths.code_list)


@contextlib.contextmanager
def held_by_nobody(folder: Path) -> Iterator[None]:
    """Hold every lock of a job's folder; OSError if an agent or a driver holds a lock."""
    with contextlib.ExitStack() as held:
        for lock in (*folder.glob("lock.*"), *Path(JobPaths(str(folder)).run).glob("lock.*")):
            descriptor = os.open(lock, os.O_RDWR)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
