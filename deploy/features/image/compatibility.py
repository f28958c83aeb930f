"""Versions that do not work together, and why. Each rule is a table with its source, and a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import NamedTuple

from ...core.plan.openmpi import OPEN_MPI_FAMILIES
from .image_versions import Track

Version = tuple[int, ...]


class Range(NamedTuple):
    """Versions from `first` up to, but without, `before`. An empty `before` is no limit."""

    first: str
    before: str = ""

    def holds(self, version: str) -> bool:
        return number(self.first) <= number(version) and (
            not self.before or number(version) < number(self.before)
        )

    def __str__(self) -> str:
        return f"{self.first} or newer" + (f", below {self.before}" if self.before else "")


# pypi.org/simple/torch: "Requires-Python"; the upper limit is the newest Python that has a wheel.
PYTHON_FOR_TORCH = {
    "2.6": Range("3.9", "3.14"),
    "2.9": Range("3.10", "3.15"),
    "2.13": Range("3.10", "3.15"),
    "2.15": Range("3.11", "3.16"),
}
# github.com/pytorch/pytorch/blob/main/RELEASE.md: "Release Compatibility Matrix". CUDA 13 came with 2.9
# (pytorch#164471), CUDA 12 leaves with 2.15 (pytorch#190385).
CUDA_FOR_TORCH = {"2.6": Range("11.8", "13"), "2.9": Range("12.6", "14"), "2.15": Range("13.0", "14")}
# "Requires-Dist: torch" of torchvision's wheels on PyPI; from 0.29 on, Spack's package.py of py-torchvision.
TORCH_FOR_TORCHVISION = {
    "0.21": Range("2.6.0", "2.6.1"),
    "0.28": Range("2.13.0", "2.13.1"),
    "0.29": Range("2.14.0"),
}
# When nvcc learned each architecture: docs.nvidia.com/cuda/cuda-features-archive (10.3, 12.1: CUDA 12.9).
# CUDA 13 begins at 7.5: docs.nvidia.com/cuda/cuda-toolkit-release-notes, "Deprecated Architectures".
CUDA_FOR_ARCHITECTURE = {
    "5.0": Range("6.5", "13"),
    "6.0": Range("8.0", "13"),
    "6.1": Range("8.0", "13"),
    "7.0": Range("9.0", "13"),
    "7.5": Range("10.0"),
    "8.0": Range("11.0"),
    "8.6": Range("11.1"),
    "8.9": Range("11.8"),
    "9.0": Range("11.8"),
    "10.0": Range("12.8"),
    "10.3": Range("12.9"),
    "12.0": Range("12.8"),
    "12.1": Range("12.9"),
}
# github.com/openucx/ucx/pull/10788: CUDA 13 is tested from 1.20 on.
# pypi.org/simple/nvidia-nccl-cu13: its oldest version.
UCX_FOR_CUDA = {"0": Range("0"), "13": Range("1.20")}
NCCL_FOR_CUDA = {"0": Range("0"), "13": Range("2.27.7")}
# docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html: 450, 525 and 580 run every
# CUDA 11, 12 and 13; docs.nvidia.com/cuda/cuda-toolkit-release-notes has the whole numbers.
DRIVER_FOR_CUDA = {"11": Range("450.80.02"), "12": Range("525.60.13"), "13": Range("580.65.06")}


class Conflict(NamedTuple):
    """Two versions that do not work together."""

    what: str
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


def number(version: str) -> Version:
    """2.13.0 -> (2, 13, 0): the leading numbers of a version."""
    return tuple(int(part) for part in takewhile(str.isdigit, re.split(r"[.+\-]", version)))


def conflicts(track: Track) -> tuple[Conflict, ...]:
    """All conflicts in a track; empty if its versions work together."""
    return tuple(conflict for rule in RULES for conflict in rule(track))


def driver_runs(driver_cuda: str, built_cuda: str) -> bool:
    """Whether a driver that supports CUDA up to `driver_cuda` runs programs built with `built_cuda`.

    Any driver of the same major version does ("minor version compatibility"); an older one needs cuda-compat.
    """
    return number(driver_cuda)[:1] >= number(built_cuda)[:1]


def oldest_driver(cuda: str) -> str:
    """The oldest Linux driver for a CUDA version."""
    return _entry(DRIVER_FOR_CUDA, cuda).first


def _python(track: Track) -> Iterator[Conflict]:
    torch = track.version("pytorch")
    if not (allowed := _entry(PYTHON_FOR_TORCH, torch)).holds(track.python):
        yield Conflict("Python and PyTorch", f"PyTorch {torch} needs Python {allowed}, not {track.python}")


def _cuda(track: Track) -> Iterator[Conflict]:
    torch = track.version("pytorch")
    if track.cuda and not (allowed := _entry(CUDA_FOR_TORCH, torch)).holds(track.cuda):
        yield Conflict("CUDA and PyTorch", f"PyTorch {torch} builds with CUDA {allowed}, not {track.cuda}")


def _torchvision(track: Track) -> Iterator[Conflict]:
    torch, vision = track.version("pytorch"), track.version("torchvision")
    if vision and not (allowed := _entry(TORCH_FOR_TORCHVISION, vision)).holds(torch):
        reason = f"torchvision {vision} is made for PyTorch {allowed}, not {torch}"
        yield Conflict("torchvision and PyTorch", reason)


def _architectures(track: Track) -> Iterator[Conflict]:
    if track.cuda and not track.architectures:
        yield Conflict("GPU architecture", "none is named: nothing would run on any GPU")
    for named in track.architectures if track.cuda else ():
        capability = named.removesuffix("+PTX")
        allowed = CUDA_FOR_ARCHITECTURE.get(capability)
        if allowed is None:
            names = ", ".join(CUDA_FOR_ARCHITECTURE)
            yield Conflict("GPU architecture", f"{capability} is none of {names}")
        elif not allowed.holds(track.cuda or ""):
            reason = f"compute capability {capability} needs CUDA {allowed}, not {track.cuda}"
            yield Conflict("GPU architecture and CUDA", reason)


def _ucx(track: Track) -> Iterator[Conflict]:
    ucx = track.version("ucx")
    if track.cuda and ucx and not (allowed := _entry(UCX_FOR_CUDA, track.cuda)).holds(ucx):
        yield Conflict("UCX and CUDA", f"CUDA {track.cuda} needs UCX {allowed}, not {ucx}")


def _nccl(track: Track) -> Iterator[Conflict]:
    if track.cuda and not track.nccl:
        yield Conflict("NCCL", "a CUDA build without NCCL has no way to train on several GPUs")
    elif track.cuda and not (allowed := _entry(NCCL_FOR_CUDA, track.cuda)).holds(track.nccl or ""):
        yield Conflict("NCCL and CUDA", f"CUDA {track.cuda} needs NCCL {allowed}, not {track.nccl}")


def _open_mpi(track: Track) -> Iterator[Conflict]:
    version = track.version("openmpi")
    if not version.startswith(tuple(f"{family}." for family in OPEN_MPI_FAMILIES)):
        families = " and ".join(OPEN_MPI_FAMILIES)
        yield Conflict("Open MPI", f"`muster launch` drives Open MPI {families}, not {version or 'none'}")


def _entry(table: dict[str, Range], version: str) -> Range:
    """The entry for a version: the last one that begins at or before it."""
    begun = [first for first in table if number(first) <= number(version)]
    return table[begun[-1] if begun else next(iter(table))]


RULES: tuple[Callable[[Track], Iterator[Conflict]], ...] = (
    _python,
    _cuda,
    _torchvision,
    _architectures,
    _ucx,
    _nccl,
    _open_mpi,
)
