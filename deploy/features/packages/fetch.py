"""Downloads the wheels of a lock to this machine, for hosts that reach no index. Intact files are kept."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...core.content.files import LocalFile
from ...core.content.transfers import OnProgress
from ...core.errors import MusterError
from ...core.wire.durable import keep_if_intact
from ...core.wire.files import digest as digest_of
from .lock import Lock, Package

AT_ONCE = 4
PIECE = 1 << 20
SECONDS = 60.0  # without a byte of an answer


class Wheel(LocalFile):
    """A wheel on this machine."""

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.path.name


def wheels(lock: Lock, cache: Path, progress: OnProgress = lambda done, total: None) -> list[Wheel]:
    """The wheels of a lock, on this machine. `progress`: gets the number of wheels so far, and all."""
    ready: list[Wheel] = []
    over = threading.Event()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for wheel in pool.map(lambda package: _wheel(package, lock, cache, over), lock.packages):
                ready.append(wheel)
                progress(len(ready), len(lock.packages))
        except BaseException:  # Ctrl-C too: the pool waits for its threads
            over.set()
            raise
    return ready


def _wheel(package: Package, lock: Lock, cache: Path, over: threading.Event) -> Wheel:
    path = package.local or cache / "wheels" / package.sha256 / package.file
    if package.local is None and not keep_if_intact(path, package.sha256):
        _download(package, path, over)
    elif package.local is not None and digest_of(path) != package.sha256:
        raise MusterError(f"{path}: changed since it was locked; to lock it again, delete {lock.file}")
    return Wheel(package.sha256, path.stat().st_size, path)


def _download(package: Package, path: Path, over: threading.Event) -> None:
    """Download a file, which appears complete and verified, or not at all; stops when `over` is set."""
    import requests

    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent)
    digest = hashlib.sha256()
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            requests.get(package.url, stream=True, timeout=SECONDS, verify=_authorities()) as answer,
        ):
            answer.raise_for_status()
            for piece in answer.iter_content(PIECE):
                if over.is_set():
                    raise MusterError("interrupted")
                digest.update(piece)
                file.write(piece)
        if digest.hexdigest() != package.sha256:
            raise MusterError(f"{package.url}: not the file that was locked (its SHA-256 differs)")
        Path(draft).replace(path)
    except requests.RequestException as error:
        raise MusterError(f"{package.name} {package.version} cannot be downloaded here: {error}") from None
    finally:
        Path(draft).unlink(missing_ok=True)


def _authorities() -> str | bool:
    """The file of certificate authorities: uv, which locks the packages, reads SSL_CERT_FILE."""
    return os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or True
