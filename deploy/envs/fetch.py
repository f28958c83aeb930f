"""Downloads the files of a lock to this machine, for hosts that reach no index. Intact files are kept.

A package without a wheel is built here, if its wheel runs on any machine.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..common.durable import keep_if_intact, read_sealed, write_sealed
from ..common.files import digest as digest_of
from ..connect.transfer.files import LocalFile
from ..connect.transfer.transfers import OnProgress
from ..errors import MusterError
from . import uv
from .lock import Package

AT_ONCE = 4
PIECE = 1 << 20
BUILT = "built.json"
"""Beside a wheel that was built here: its name and SHA-256."""
SECONDS = 60.0  # without a byte of an answer


class Wheel(LocalFile):
    """A wheel on this machine."""

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.path.name


def wheels(
    packages: Sequence[Package], python: str, cache: Path, progress: OnProgress = lambda done, total: None
) -> list[Wheel]:
    """The wheel of each package, on this machine. `progress`: gets the number of wheels so far, and all."""
    ready: list[Wheel] = []
    over = threading.Event()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for wheel in pool.map(lambda package: _wheel(package, python, cache, over), packages):
                ready.append(wheel)
                progress(len(ready), len(packages))
        except BaseException:  # Ctrl-C too: the pool waits for its threads
            over.set()
            raise
    return ready


def described(path: Path) -> LocalFile:
    """A file of this machine with its digest."""
    return LocalFile(digest_of(path), path.stat().st_size, path)


def _wheel(package: Package, python: str, cache: Path, over: threading.Event) -> Wheel:
    folder = cache / "wheels" / package.sha256
    if package.sdist:
        folder = folder / python
        path = _built_before(folder) or _built(package, python, cache, folder, over)
        return Wheel(*described(path))
    path = package.local or folder / package.file
    if package.local is None and not keep_if_intact(path, package.sha256):
        _download(package, path, over)
    elif package.local is not None and digest_of(path) != package.sha256:
        raise MusterError(f"{path}: changed since it was locked; launch with --relock")
    return Wheel(package.sha256, path.stat().st_size, path)


def _download(package: Package, path: Path, over: threading.Event) -> None:
    """Download a file, which appears complete and verified, or not at all; stops when `over` is set."""
    import requests  # noqa: PLC0415  # most launches download nothing

    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent)
    digest = hashlib.sha256()
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            requests.get(package.url, stream=True, timeout=SECONDS) as answer,
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


def _built_before(folder: Path) -> Path | None:
    """The intact wheel of an earlier launch; else None."""
    try:
        name, digest = read_sealed(folder / BUILT)
        path = folder / Path(name).name
        return path if keep_if_intact(path, digest) else None
    except (TypeError, ValueError):
        return None


def _built(package: Package, python: str, cache: Path, folder: Path, over: threading.Event) -> Path:
    """Build the wheel of a source archive; an error if it runs only on machines like this one."""
    archive = package.local or cache / "wheels" / package.sha256 / package.file
    if package.local is None and not keep_if_intact(archive, package.sha256):
        _download(package, archive, over)
    folder.parent.mkdir(parents=True, exist_ok=True)
    problem = f"{package.name} {package.version} has no wheel for the hosts"
    with tempfile.TemporaryDirectory(dir=folder.parent) as out:
        arguments = ["build", "--quiet", "--wheel", "--python", python, "--out-dir", out, str(archive)]
        uv.run(arguments, f"{problem}, and cannot be built here", os.environ, Path(out))
        made = next(Path(out).glob("*.whl"))
        if not made.stem.endswith("-none-any"):
            raise MusterError(
                f"{problem}, and holds compiled code: build a wheel on a host, and name its folder with "
                "--find-links FOLDER in the requirements"
            )
        folder.mkdir(exist_ok=True)
        digest = digest_of(made)
        made.replace(folder / made.name)  # whole, or not at all
        write_sealed(folder / BUILT, [made.name, digest])
    return folder / made.name
