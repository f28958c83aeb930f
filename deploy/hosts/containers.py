"""What hosts say about the image in which ranks are to run, and about the engine that starts it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from ..decode import AtMost, Like
from ..errors import UnfitError
from .bounds import AbsolutePath, Count, Number, Words
from .facts import Facts, Interpreter, with_interpreter

EngineName = Literal["docker", "podman", "apptainer"]
ENGINES: tuple[EngineName, ...] = ("docker", "podman", "apptainer")
"""In the order in which a host tries them."""
LEAST_PYTHON = (3, 9)
SHOWN = 12  # characters of an image's id


@dataclass(frozen=True)
class ImageContents(Interpreter):
    """What ranks find in the image."""

    mpi_error: Words | None
    passwd: Annotated[str, AtMost(1 << 16)]
    """Its /etc/passwd."""


@dataclass(frozen=True)
class HostImage:
    """The image on a host, and how its engine starts a container of it."""

    engine: EngineName
    program: AbsolutePath
    """The engine's command."""
    rootless: bool
    """Whether the engine itself runs as the user: then the user is root, or the user, inside."""
    remapped: bool
    """Whether the engine gives containers other numbers of users, unless an option turns that off."""
    raises_limits: bool
    """Whether the engine may give a container more locked memory than the user has."""
    id: Annotated[str, Like(r"([0-9a-f]{64})?")]
    """The SHA-256 that names the image; empty where the host does not have it."""
    digests: Annotated[tuple[Annotated[str, Like(r"[0-9a-f]{64}")], ...], AtMost(64)]
    """The digests by which registries know the image."""
    inside: ImageContents | None
    user: Annotated[str, Like(r"[^\s:]{1,64}")]
    gid: Count
    groups: Annotated[tuple[Count, ...], AtMost(1 << 10)]
    """The user's other groups."""
    open_files: Number
    """The most open files that the user may have; -1 for no limit."""
    gpus: Literal["", "toolkit", "cdi"]
    """How a container gets NVIDIA's GPUs here: by the container toolkit, by CDI, or not at all."""
    devices: Annotated[tuple[AbsolutePath, ...], AtMost(16)]
    """Devices of the host that ranks need: RDMA, and GPUs of AMD."""
    home: Annotated[str, Like(r"[0-9a-f]{32}")]
    """Equal on hosts that share a home folder: whose containers may be swept."""


def inside(facts: Facts, there: HostImage) -> Facts:
    """What a launch finds on a host if its ranks run in the image. Without an Open MPI there, the host's.

    In that case the image's mpi4py, if any, has no library that fits to it, so ranks start without it.
    """
    found = there.inside
    if found is None:
        return facts
    usable = found if found.mpirun else replace(found, mpi4py=None)
    return with_interpreter(facts, usable, found.mpi_error)


def require_same(image: str, there: Mapping[str, HostImage]) -> None:
    """`UnfitError` for hosts whose image is another than that of the first host, or has too old a Python."""
    first, model = next(iter(there.items()))
    of_first = f"{model.id[:SHOWN]} on {first}"
    reasons = [
        (host, f"{image} is {known.id[:SHOWN]} here, but {of_first}; {_same_again(image, known)}")
        for host, known in there.items()
        if known.id != model.id and not {*known.digests} & {*model.digests}
    ]
    reasons += [
        (host, f"{image} has Python {found.python}; ranks need 3.9 or newer in it")
        for host, known in there.items()
        if (found := known.inside) and tuple(map(int, found.python.split(".")[:2])) < LEAST_PYTHON
    ]
    if reasons:
        raise UnfitError(reasons)


def what_brings(image: str, engine: EngineName) -> str:
    """The commands that bring an image from here. `image.push` loads it through the API of docker."""
    image = shlex.quote(image)
    if engine == "podman":
        return (
            f"docker save -o image.tar {image}; muster put image.tar; muster run -- podman load -i image.tar"
        )
    return "muster put" if engine == "apptainer" else f"muster image.push --image {image}"


def _same_again(image: str, known: HostImage) -> str:
    bring = what_brings(image, known.engine)
    if known.engine == "apptainer":
        return f"copy one file to all hosts: {bring}"
    return f"pull it on both hosts ({known.engine}), name it by its digest, or bring it from here: {bring}"
