"""The container engine of this machine, by the command `docker`: looks up images, runs and saves them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...core.errors import MusterError, UsageError
from ...core.waits import waiting
from .image_versions import load, targets

CHUNK = 1 << 20
_ABSENT = re.compile(r"(?i)no such (image|object)|image not known")


@dataclass(frozen=True)
class Image:
    """An image of this machine's engine."""

    name: str
    id: str
    created: str
    layers: tuple[str, ...]
    """The digests of its layers' contents (diff IDs), the lowest first."""
    size: int
    labels: dict[str, str]


def how_to_get(name: str) -> str:
    """The remedy for an image that this machine does not have."""
    own, _, target = name.partition("muster:")
    if own or not target:
        return f"get it with: docker pull {shlex.quote(name)}"
    built = targets(load().values())
    if target.removesuffix("-devel") in built:
        return f"get it with: muster image build {target}"
    images = ", ".join(f"muster:{each}" for each in built)
    return f"muster image build makes {images}; load another one with: docker load"


def image(name: str) -> Image:
    """Look up an image by its name. `UsageError` if this machine does not have it."""
    done = _docker("image", "inspect", name)
    if done.returncode and _ABSENT.search(done.stderr):
        raise UsageError(f"no image {name} here; {how_to_get(name)}")
    if done.returncode:
        raise _error(done.stderr)
    (found,) = json.loads(done.stdout)
    return Image(
        name=name,
        id=found["Id"],
        created=found["Created"],
        layers=tuple(found["RootFS"].get("Layers") or ()),
        size=found["Size"],
        labels=found["Config"].get("Labels") or {},
    )


def run(image: Image, argv: Sequence[str]) -> tuple[int, str]:
    """Run a command without network. Returns its exit status and output, or the error of its start."""
    options = ("--rm", "--network", "none", "--hostname", "image", "--shm-size", "256m")
    done = _docker("run", *options, "--entrypoint", argv[0], image.id, *argv[1:])
    return done.returncode, done.stdout or done.stderr


def save(image: Image) -> Iterator[bytes]:
    """The image as `docker save` writes it, piece by piece."""
    argv = ["docker", "save", image.name]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None  # noqa: S101  # both are pipes
        while piece := process.stdout.read(CHUNK):
            yield piece
        said = process.stderr.read().decode(errors="replace")
    if process.returncode:
        raise _error(said)


def _docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        with waiting("the container engine"):
            return subprocess.run(
                ["docker", *arguments], capture_output=True, text=True, errors="replace", check=False
            )
    except FileNotFoundError:
        raise MusterError("no docker here; image check and image push need its command") from None


def _error(said: str) -> MusterError:
    last = (said.strip().splitlines() or ["no message"])[-1]
    return MusterError(f"the container engine: {last}; does `docker info` work here?")
