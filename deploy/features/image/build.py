"""The build of a target: the command line of `docker buildx bake`, and the expected duration."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import UsageError
from .compatibility import conflicts
from .image_versions import FOLDER, Track, targets

# Seconds, measured on 2 cores beside other work (docs/image.md). `cuda` has not been built end to end, so it
# has no number.
FIRST_BUILD = {"cpu": 75, "cpu-source": 7000}
MEASURED_ON = 2


def find(target: str, tracks: Sequence[Track]) -> Track:
    """The track of a target. `UsageError` for an unknown target, or versions that do not work together."""
    named = targets(tracks)
    if (wanted := target.removesuffix("-devel")) not in named:
        raise UsageError(f"--target must be one of {', '.join(named)}, got '{target}'")
    _, track = named[wanted]
    if clashes := conflicts(track):
        reasons = "\n".join(f"  {conflict}" for conflict in clashes)
        raise UsageError(f"the track {track.name} of docker/versions.json cannot work:\n{reasons}")
    return track


@dataclass(frozen=True)
class Recipe:
    """The differences of a build from the target's own recipe; the empty string changes nothing."""

    proof: bool = False
    """Leave out the kernels that take longest (docs/image.md)."""
    gpus: str = ""
    """Compute capabilities in place of the track's, in PyTorch's form: `9.0` or `8.0;9.0+PTX`."""

    def settings(self, target: str) -> list[str]:
        """The options of `docker buildx bake`. `UsageError` for values that no build takes."""
        if self.gpus and not re.fullmatch(r"\d+\.\d+[a-z]?(\+PTX)?(;\d+\.\d+[a-z]?(\+PTX)?)*", self.gpus):
            raise UsageError(
                f"--gpus must be compute capabilities, such as 9.0 or 8.0;9.0+PTX, got '{self.gpus}'"
            )
        if self.proof and target.removesuffix("-devel") == "cpu":
            raise UsageError(f"--proof is for targets that are compiled, and {target} is not")
        if self.gpus and not target.startswith("cuda"):
            raise UsageError(f"--gpus is for targets with CUDA, and {target} has none")
        values = {
            "args.PROFILE": "proof" if self.proof else "",
            "args.TORCH_CUDA_ARCH_LIST": self.gpus,
        }
        return [
            token
            for name, value in values.items()
            if value
            for token in ("--set", f"{target}.{name}={value}")
        ]


def command(target: str, source: str = "", ca: str = "", recipe: Recipe = Recipe()) -> list[str]:
    """The command line of the build. The archives in the folder `source` replace downloads."""
    arguments = ["docker", "buildx", "bake", "--file", str(FOLDER / "docker-bake.json"), target]
    arguments += ["--set", f"{target}.context={FOLDER.parent}"]
    if source and not Path(source).is_dir():
        raise UsageError(f"--source: no folder {source}")
    if source and target == "cpu":
        raise UsageError("--source: the target cpu compiles nothing; it takes the distribution's packages")
    arguments += ["--set", f"{target}.contexts.sources={source}"] if source else []
    if ca and not Path(ca).is_file():
        raise UsageError(f"--ca: no file {ca}")
    arguments += recipe.settings(target)
    return arguments + (["--set", f"{target}.secrets=id=ca,src={ca}"] if ca else [])


def base_commands(track: Track, ca: str = "") -> list[list[str]]:
    """The command lines that build the base images of a track, if no registry has them; often none."""
    if not track.base:
        return []
    arguments = ["docker", "build", "--file", str(FOLDER.parent / track.base)]
    arguments += ["--secret", f"id=ca,src={ca}"] if ca else []
    stages = {"devel": track.devel, "runtime": track.runtime}
    return [[*arguments, "--target", stage, "--tag", name, str(FOLDER)] for stage, name in stages.items()]


def without_sum(track: Track) -> list[str]:
    """The components whose build will stop because their SHA-256 is not pinned."""
    return [name for name, part in track.components.items() if part.is_built and not part.sha256]


class Durations:
    """Remembers how long the last build of each target took here."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def estimate(self, target: str) -> str:
        """The expected duration of a build, in a sentence."""
        seconds = self._read().get(target)
        if seconds is not None:
            return f"the last build of {target} took {_readable(seconds)} here"
        if measured := FIRST_BUILD.get(target):
            cores = os.cpu_count() or 1
            part = f"about {_readable(measured * MEASURED_ON / cores)} on {cores} cores"
            return f"a first build takes {part if measured > 600 else 'one to five minutes'}"
        return "a first build of this target has not been measured; expect hours"

    def note(self, target: str, seconds: float) -> None:
        """Remember the duration of a build, unless everything was in the cache."""
        if seconds > 10:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(json.dumps({**self._read(), target: round(seconds)}) + "\n")

    def _read(self) -> dict[str, float]:
        try:
            return dict(json.loads(self._file.read_text()))
        except (OSError, ValueError):
            return {}


def _readable(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
