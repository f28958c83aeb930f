"""The container engine of this machine, through the Docker SDK: it looks at images, runs and saves them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import docker.errors
import requests.exceptions
from docker.client import DockerClient

from deploy.errors import MusterError, UsageError

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


class Engine:
    """The engine that DOCKER_HOST names, or the one at its usual socket."""

    def __init__(self) -> None:
        with _explained():
            self._client: Any = DockerClient.from_env()
            self._client.ping()

    def image(self, name: str) -> Image:
        """An image by its name; `UsageError` if it is not here."""
        try:
            with _explained():
                found = self._client.images.get(name).attrs
        except docker.errors.ImageNotFound:
            raise UsageError(f"no image {name} here; build it with: fab image.build") from None
        return Image(
            name=name,
            id=found["Id"],
            created=found["Created"],
            layers=tuple(found["RootFS"]["Layers"]),
            size=found["Size"],
            labels=found["Config"].get("Labels") or {},
        )

    def run(self, image: Image, argv: Sequence[str]) -> tuple[int, str]:
        """Run a command without network; its exit status and what it printed, or why it did not start."""
        with _explained():
            container = self._client.containers.create(
                image.id, list(argv), entrypoint=[], network_mode="none", hostname="image", shm_size="256m"
            )
            try:
                container.start()
                status = container.wait()["StatusCode"]
                return status, container.logs(stderr=False).decode(errors="replace")
            except docker.errors.APIError as error:
                return 127, str(error.explanation)
            finally:
                container.remove(force=True)

    def save(self, image: Image) -> Iterator[bytes]:
        """The image as `docker save` writes it, piece by piece."""
        with _explained():
            yield from self._client.api.get_image(image.name, chunk_size=CHUNK)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except docker.errors.ImageNotFound:
        raise
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise MusterError(f"the container engine: {error}; does `docker info` work here?") from None
