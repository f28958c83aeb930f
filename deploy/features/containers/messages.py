"""The image of the ranks on each host, and the engine that starts it. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from ...core.connect.requests.request import Nothing, Request
from ...core.decode import AtMost, Like
from ...core.errors import UnfitError
from ...core.hosts.bounds import AbsolutePath, Count, Number, Text
from ...core.hosts.host_facts import Facts, Interpreter, with_interpreter
from .options import EngineName

LEAST_PYTHON = (3, 9)
SHOWN = 12  # characters of an image's id


@dataclass(frozen=True)
class ImageContents(Interpreter):
    """The software in the image."""

    mpi_error: Text | None
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
    """The digests of the image in registries."""
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
    """Equal on hosts that share a home folder: containers with it may be swept."""


CONTAINER = Request("container", HostImage)
CONTAINER_START = Request("container_start", Nothing)


def container_facts(facts: Facts, image: HostImage) -> Facts:
    """The facts for ranks in the image. An image without Open MPI gets the host's.

    The image's mpi4py, if any, has no library that fits to the host's Open MPI, so ranks start without it.
    """
    contents = image.inside
    if contents is None:
        return facts
    usable = contents if contents.mpirun else replace(contents, mpi4py=None)
    return with_interpreter(facts, usable, contents.mpi_error)


def require_same(image: str, images: Mapping[str, HostImage]) -> None:
    """`UnfitError` for hosts whose image differs from that of the first host, or has too old a Python."""
    first, model = next(iter(images.items()))
    of_first = f"{model.id[:SHOWN]} on {first}"
    reasons = [
        (host, f"{image} is {held.id[:SHOWN]} here, but {of_first}; {_remedy(image, held)}")
        for host, held in images.items()
        if held.id != model.id and not {*held.digests} & {*model.digests}
    ]
    reasons += [
        (host, f"{image} has Python {contents.python}; ranks need 3.9 or newer in it")
        for host, held in images.items()
        if (contents := held.inside) and tuple(map(int, contents.python.split(".")[:2])) < LEAST_PYTHON
    ]
    if reasons:
        raise UnfitError(reasons)


def push_commands(image: str, engine: EngineName) -> str:
    """The commands that bring an image from here. `image.push` loads it through docker's API."""
    image = shlex.quote(image)
    if engine == "podman":
        return (
            f"docker save -o image.tar {image}; muster put image.tar; muster run -- podman load -i image.tar"
        )
    return "muster put" if engine == "apptainer" else f"muster image.push --image {image}"


def _remedy(image: str, held: HostImage) -> str:
    bring = push_commands(image, held.engine)
    if held.engine == "apptainer":
        return f"copy one file to all hosts: {bring}"
    return f"pull it on both hosts ({held.engine}), name it by its digest, or bring it from here: {bring}"
