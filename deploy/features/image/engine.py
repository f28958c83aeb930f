"""The container engine of this machine, through the Docker SDK: looks up images, runs and saves them.

The SDK is imported at its first use: its import would double the start time of every command.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.errors import MusterError, UsageError
from ...core.waits import waiting
from .image_versions import load, targets

CHUNK = 1 << 20


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


class LocalEngine:
    """The engine that DOCKER_HOST names, or the one at its usual socket."""

    def __init__(self) -> None:
        from docker.client import DockerClient

        with _explained():
            self._client: Any = DockerClient.from_env()
            self._client.ping()

    def image(self, name: str) -> Image:
        """Look up an image by its name. `UsageError` if this machine does not have it."""
        try:
            with _explained():
                attributes = self._client.images.get(name).attrs
        except _errors().ImageNotFound:
            raise UsageError(f"no image {name} here; {how_to_get(name)}") from None
        return Image(
            name=name,
            id=attributes["Id"],
            created=attributes["Created"],
            layers=tuple(attributes["RootFS"]["Layers"]),
            size=attributes["Size"],
            labels=attributes["Config"].get("Labels") or {},
        )

    def run(self, image: Image, argv: Sequence[str]) -> tuple[int, str]:
        """Run a command without network. Returns its exit status and output, or the error of its start."""
        with _explained():
            container = self._client.containers.create(
                image.id, list(argv), entrypoint=[], network_mode="none", hostname="image", shm_size="256m"
            )
            try:
                container.start()
                status = container.wait()["StatusCode"]
                return status, container.logs(stderr=False).decode(errors="replace")
            except _errors().APIError as error:
                return 127, str(error.explanation)
            finally:
                container.remove(force=True)

    def save(self, image: Image) -> Iterator[bytes]:
        """The image as `docker save` writes it, piece by piece."""
        with _explained():
            yield from self._client.api.get_image(image.name, chunk_size=CHUNK)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    from requests.exceptions import RequestException

    try:
        with waiting("the container engine"):
            yield
    except _errors().ImageNotFound:
        raise
    except (_errors().DockerException, RequestException) as error:
        raise MusterError(f"the container engine: {error}; does `docker info` work here?") from None


def _errors() -> Any:
    import docker.errors

    return docker.errors
