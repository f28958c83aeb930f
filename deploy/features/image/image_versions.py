"""The versions of docker/versions.json: a track for each set that is built and proved together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.decode import MALFORMED, from_json
from ...core.errors import UsageError

FOLDER = Path(__file__).parents[3] / "docker"
FILE = FOLDER / "versions.json"
UNVERIFIED = "unverified"
"""In place of a SHA-256 that is not pinned. A build with it stops and prints the remedy."""


@dataclass(frozen=True)
class Component:
    """A piece of software. `source`: an address, `debian:PACKAGE=VERSION` or `distribution` (not built)."""

    version: str
    source: str
    sha256: str | None = None

    @property
    def is_built(self) -> bool:
        """Whether the build compiles it from its own source."""
        return self.source != "distribution"


@dataclass(frozen=True)
class Track:
    """A set of versions, and the targets that are built from it."""

    name: str
    targets: tuple[str, ...]
    devel: str
    runtime: str
    python: str
    components: Mapping[str, Component]
    cuda: str | None = None
    nccl: str | None = None
    cudnn: str | None = None
    """None: whichever the base has, such as one that is named by its digest."""
    triton: str | None = None
    """For torch.compile on GPUs: the version that the wheel of the same PyTorch pins."""
    base: str = ""
    """A Dockerfile of this checkout that makes `devel` and `runtime`; empty if a registry has them."""
    plain_base: str = ""
    """The base of the targets without CUDA, for compilers and for programs; empty if the track has none."""
    architectures: tuple[str, ...] = ()
    """Compute capabilities, as TORCH_CUDA_ARCH_LIST has them: 9.0, 12.0+PTX."""

    def without_cuda(self) -> Track:
        """The same sources on the plain base."""
        plain = replace(self, devel=self.plain_base, runtime=self.plain_base, base="")
        return replace(plain, cuda=None, nccl=None, cudnn=None, triton=None, architectures=())


def parse(text: str, source: str = str(FILE)) -> dict[str, Track]:
    """Every track by its name. `UsageError` if the text has another form."""
    try:
        records = json.loads(text)["tracks"].items()
        return {name: from_json(Track, {"name": name, **record}) for name, record in records}
    except MALFORMED as error:
        raise UsageError(f"{source}: {type(error).__name__}: {error}") from None


def load(path: Path = FILE) -> dict[str, Track]:
    """The tracks of a file. `UsageError` if it does not exist: every installation has Muster's own file."""
    if not path.is_file():
        raise UsageError(f"{path}: not found; install Muster again")
    return parse(path.read_text(), str(path))


DEFAULT = "nvidia"
"""The track of the target `cuda`. The target of another track has a suffix: cuda-debian."""


def targets(tracks: Iterable[Track]) -> dict[str, tuple[str, Track]]:
    """Every target by its name: its flavour, and the track from which it is built."""
    flavours: dict[str, tuple[str, Track]] = {}
    for track in tracks:
        for flavour in track.targets:
            name = f"{flavour}-{track.name}" if flavour == "cuda" and track.name != DEFAULT else flavour
            flavours[name] = flavour, track.without_cuda() if flavour == "cpu-source" else track
    return flavours
