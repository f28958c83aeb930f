"""The flags of containers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...core.errors import UsageError
from ...core.plan.flags import Options, flag

EngineName = Literal["docker", "podman", "apptainer"]
ENGINES: tuple[EngineName, ...] = ("docker", "podman", "apptainer")
"""In the order in which a host tries them."""
GROUP = "Packages and container"
APPTAINER = "apptainer starts a file, docker and podman an image by its name: --image /PATH/OF/IMAGE.sif"


@dataclass(frozen=True)
class Mount:
    """A folder or file of a host, and its path in the container; by default the same."""

    source: str
    at: str = ""
    read_only: bool = False

    @property
    def target(self) -> str:
        """Its path in the container."""
        return self.at or self.source


def _image(text: str) -> str:
    if not re.fullmatch(r"[\w/][\w./:@+~-]*", text):
        raise UsageError(f"--image {text!r}: write NAME:TAG or NAME@sha256:..., or the path of a .sif file")
    return text


def _mount(text: str) -> Mount:
    """`/data`, `/data:/inside`, `/data:ro` or `/data:/inside:ro`."""
    source, *others = text.split(":")
    mode = others.pop() if others and others[-1] in {"ro", "rw"} else "rw"
    at = others[0] if others else ""
    if len(others) > 1 or not source.startswith("/") or (at and not at.startswith("/")):
        raise UsageError(f"--mount {text}: write /PATH, /PATH:/INSIDE or /PATH:/INSIDE:ro")
    return Mount(source, at, read_only=mode == "ro")


@dataclass(frozen=True)
class ContainerOptions(Options):
    """The container of the ranks."""

    image: str = flag(
        "",
        "run the ranks in a container of this image on every host",
        "IMAGE",
        replaces=("requirements", "python_version", "system_torch", "torch_backend"),
        group="Most used",
        parse=_image,
    )
    engine: str = flag(
        "",
        "start the container with docker, podman or apptainer (default: the one that each host has)",
        "NAME",
        choices=ENGINES,
        group=GROUP,
    )
    mount: tuple[Mount, ...] = flag(
        (),
        "a folder of the hosts for the container; may be repeated",
        "PATH[:INSIDE][:ro]",
        group=GROUP,
        parse=_mount,
    )

    def check(self, given: Mapping[str, Any]) -> None:
        """`UsageError` for options that need an image, and for an image that excludes others."""
        for name in ("engine", "mount"):
            if name in given and not self.image:
                raise UsageError(f"--{name} is for containers; name their image too: --image REF")
        if self.image and "requirements" in given:
            raise UsageError("--requirements with --image: the image has the packages; install them in it")
        if self.engine and self.image.startswith("/") != (self.engine == "apptainer"):
            raise UsageError(f"--image {self.image}: {APPTAINER}")
