"""The requirements of a launch: a file, and choices. Their fingerprint identifies the lock."""

from __future__ import annotations

import hashlib
import re
from dataclasses import astuple, dataclass
from pathlib import Path

from ...core.connect.ownership import require_own
from ...core.decode import lazy_dataclass
from ...core.errors import UsageError
from ...core.plan.flags import Options, flag

_RUNS = "the ranks run the packages that it names"


@lazy_dataclass(frozen=True)
class Requirements:
    """The packages for the ranks of a launch."""

    file: Path
    """requirements.txt, pyproject.toml or uv.lock."""
    python: str = ""
    """The version of Python, `3.12`; empty for the hosts' own."""
    system_torch: bool = False
    """Whether torch is the host's own, with its dependencies."""
    torch_backend: str = "auto"
    """Which wheels of torch: uv's name, or `auto` for those of the hosts, or `none` for the index's own."""


@lazy_dataclass(frozen=True)
class Platform:
    """The common properties of the hosts of a launch that decide which wheels run on them."""

    python: str
    """`3.13`"""
    machine: str
    glibc: str
    """The oldest of the hosts, `2.36`."""
    driver: str = ""
    """The oldest NVIDIA driver of the hosts; empty without GPUs."""
    torch: str = ""
    """The hosts' own torch, if that is used."""
    own_python: str = ""
    """The hosts' own Pythons, which have that torch."""
    mpi: bool = False
    """Whether Open MPI has to come as a wheel."""

    @property
    def uv_name(self) -> str:
        """The platform as uv calls it: the newest that is not newer than the hosts."""
        minor = int(self.glibc.split(".")[1])
        version = next((version for version in _MANYLINUX if version <= minor), _MANYLINUX[-1])
        return f"{self.machine}-manylinux_2_{version}"


_MANYLINUX = (40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 28, 17)


@dataclass(frozen=True)
class PackageOptions(Options):
    """The packages for the ranks of a launch, and where its hosts have them."""

    requirements: str = flag(
        "",
        "install the packages of this requirements.txt, pyproject.toml or uv.lock on every host, once",
        "FILE",
        replaces=("image", "engine", "mount"),
        group="Most used",
    )
    python_version: str = flag(
        "",
        "the version of Python for these packages, 3.12 (default: the hosts' own Python)",
        "VERSION",
        group="Packages and container",
    )
    system_torch: bool = flag(False, "use the torch installed on the hosts", group="Packages and container")
    torch_backend: str = flag(
        "auto",
        "which wheels of torch: auto (default: by GPUs and NVIDIA's driver), none, cpu, cu128, ...",
        "NAME",
        group="Packages and container",
    )
    environment: str = ""
    """The name of their environment on every host; empty if no host has it yet."""
    described: str = ""
    """A line about them."""


def wanted(options: PackageOptions) -> Requirements | None:
    """The requirements by the flags; None without `--requirements`. `UsageError` for wrong combinations."""
    file, python, torch_backend = options.requirements, options.python_version, options.torch_backend
    system_torch = options.system_torch
    if not file:
        chosen = {"--python-version": python, "--system-torch": system_torch}
        chosen["--torch-backend"] = torch_backend != Requirements.torch_backend
        if name := next((name for name, value in chosen.items() if value), ""):
            raise UsageError(f"{name} needs --requirements FILE")
        return None
    if not Path(file).exists():
        raise UsageError(f"--requirements {file}: no such file")
    if python and not re.fullmatch(r"3\.\d{1,2}", python):
        raise UsageError(f"--python-version {python}: write a version such as 3.12")
    if python and system_torch:
        raise UsageError("--system-torch takes the hosts' own Python with it; leave out --python-version")
    if not re.fullmatch(r"[a-z]+[0-9.]*", torch_backend):
        raise UsageError(f"--torch-backend {torch_backend}: write auto, none, cpu, or a CUDA such as cu128")
    require_own_requirements(Path(file))
    return Requirements(Path(file), python, system_torch, torch_backend)


def require_own_requirements(file: Path) -> None:
    """`UsageError` for requirements or settings of uv of others, and for packages that would be built."""
    from .requirements import files_of, for_uv, require_no_builds

    require_own([*(path for path, _ in files_of(file)), *for_uv(file)], _RUNS)
    require_no_builds(file)


def fingerprint(requirements: Requirements, platform: Platform, uv: str) -> str:
    """The digest of all inputs of a lock except the index: it changes with a file or a host."""
    from .requirements import files_of

    choices = ("--no-build", uv, astuple(platform), requirements.system_torch, requirements.torch_backend)
    digest = hashlib.sha256(repr(choices).encode())
    for path, text in files_of(requirements.file):
        digest.update(repr((path.name, text)).encode())
    return digest.hexdigest()
