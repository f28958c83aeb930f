"""The agent's part in `fab image.push`: inspects images, and loads one from the layers that have arrived."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import socket
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ....core.agent.transfers import CHUNK, Blobs
from ....core.wire.frames import Frame

TIMEOUT_SECONDS = 600.0  # loading unpacks a gigabyte, on a slow disk too


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def socket_path() -> str:
    """The socket of the engine: DOCKER_HOST, else the user's own engine, else the host's."""
    named = os.environ.get("DOCKER_HOST", "")
    if named.startswith("unix://"):
        return named[len("unix://") :]
    user_socket = os.path.join(os.environ.get("XDG_RUNTIME_DIR", "/nowhere"), "docker.sock")
    return user_socket if os.path.exists(user_socket) else "/var/run/docker.sock"


def ask(method: str, path: str, body: Iterable[bytes] | None = None) -> Any:
    """The engine's answer, from JSON; to a request with a body, a list of its lines.

    OSError with the engine's message if it refuses, with another reason if no engine answers.
    """
    path_of_socket = socket_path()
    connection = _Connection(path_of_socket)
    try:
        headers = {"Content-Type": "application/x-tar"} if body else {}
        with contextlib.suppress(BrokenPipeError):  # an engine may refuse early; its answer has the reason
            connection.request(method, path, body, headers, encode_chunked=body is not None)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except http.client.HTTPException as error:
        raise OSError(f"the container engine at {path_of_socket}: {error}") from None
    except OSError as error:
        raise OSError(f"the container engine at {path_of_socket}: {error.strerror or error}") from None
    finally:
        connection.close()
    if answer.status >= 400:
        raise OSError(f"the container engine at {path_of_socket}: {_message(text)}")
    return [json.loads(line) for line in text.splitlines() if line] if body else json.loads(text or "null")


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip()


def find(name: str) -> dict[str, Any] | None:
    """The engine's record of the image with a name; None if it has no such image."""
    matches = [image for image in images() if name in (image.get("RepoTags") or ())]
    return dict(inspect(matches[0]["Id"])) if matches else None


def images() -> list[dict[str, Any]]:
    """Every image of the engine."""
    return list(ask("GET", "/images/json"))


def inspect(identity: str) -> dict[str, Any]:
    """Everything about one image."""
    return dict(ask("GET", f"/images/{quote(identity, safe='')}/json"))


def layers_in_common(layers: list[str]) -> int:
    """The number of the lowest layers that an image here has: a layer depends on those below it."""
    stored = [inspect(image["Id"])["RootFS"].get("Layers") or [] for image in images()]
    return max((_in_common(layers, image_layers) for image_layers in stored), default=0)


def _in_common(layers: list[str], image_layers: list[str]) -> int:
    same = (layer == other for layer, other in zip(layers, image_layers))  # the lengths may differ
    return sum(takewhile(bool, same))


def needs_every_layer() -> bool:
    """Whether this engine keeps images in containerd's store, which takes no archive with layers left out."""
    status = ask("GET", "/info").get("DriverStatus") or []
    return any("containerd" in str(value) for pair in status for value in pair)


def load(archive: Iterable[bytes]) -> None:
    """Load an archive as `docker load` does; OSError with the engine's message if it refuses."""
    for answer in ask("POST", "/images/load?quiet=1", archive):
        if "error" in answer:
            raise OSError(f"the container engine: {answer['error']}")


class ImageLoader:
    """Answers requests about images. Long work runs in a thread, and ends with an event."""

    def __init__(self, root: Path, send: Callable[[Frame], None]) -> None:
        self._layers, self._send = Blobs(root), send

    def do_image(self, request: Frame, payload: bytes) -> Frame:
        """The image with this name, and how many of these layers may be left out."""
        common = 0 if needs_every_layer() else layers_in_common(request["layers"])
        return {**self._described(request["name"]), "common": common}

    def do_image_load(self, request: Frame, payload: bytes) -> Frame:
        """Load the image into the engine, without the layers that it has."""
        threading.Thread(target=self._load, args=(request, payload), daemon=True).start()
        return {}

    def _load(self, request: Frame, payload: bytes) -> None:
        try:
            load(self._archive(request, payload))
            loaded = self._described(request["name"])
        except (OSError, ValueError) as error:
            self._send({"event": "image-loaded", "error": str(error)})
        else:
            self._send({"event": "image-loaded", **loaded})

    def _described(self, name: str) -> Frame:
        image = find(name)
        if image is None:
            return {"id": "", "created": "", "layers": []}
        return {"id": image["Id"], "created": image["Created"], "layers": image["RootFS"].get("Layers") or []}

    def _archive(self, request: Frame, configuration: bytes) -> Iterator[bytes]:
        """An archive as `docker save` writes it, with compressed layers; the engine checks each again."""
        manifest = [{"Config": "config.json", "RepoTags": [request["name"]], "Layers": request["places"]}]
        yield from _member("config.json", io.BytesIO(configuration), len(configuration))
        text = json.dumps(manifest).encode()
        yield from _member("manifest.json", io.BytesIO(text), len(text))
        for name, digest in request["layers"]:
            path = self._layers.path(digest)
            with open(path, "rb") as file:
                yield from _member(name, file, path.stat().st_size)
        yield bytes(2 * tarfile.BLOCKSIZE)


def _member(name: str, content: io.BufferedIOBase | io.BufferedReader, size: int) -> Iterator[bytes]:
    entry = tarfile.TarInfo(name)
    entry.size = size
    yield entry.tobuf(tarfile.GNU_FORMAT)
    while part := content.read(CHUNK):
        yield part
    if size % tarfile.BLOCKSIZE:
        yield bytes(tarfile.BLOCKSIZE - size % tarfile.BLOCKSIZE)
