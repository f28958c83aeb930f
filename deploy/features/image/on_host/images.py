"""The agent's part in `muster image push`: inspects images, and loads one from the layers that have arrived.

It uses the command `docker` of the login, which also finds an engine elsewhere (DOCKER_HOST, contexts).
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from ....core.agent.transfers import CHUNK, Blobs
from ....core.wire.frames import Frame

ANSWER_SECONDS = 50.0  # the driver waits 60 s (image_push.py)


def docker(*arguments: str) -> Any:
    """The output of the command, which is JSON; OSError with the last line of its error."""
    try:
        done = subprocess.run(
            ["docker", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise OSError("there is no command docker, which loads images") from None
    except subprocess.TimeoutExpired:
        raise OSError(f"docker {arguments[0]}: no answer within {ANSWER_SECONDS:.0f} s") from None
    if done.returncode:
        raise _refused(arguments[0], done.stderr)
    return json.loads(done.stdout or b"null")


def _refused(command: str, said: bytes) -> OSError:
    lines = said.decode(errors="replace").strip().splitlines()
    return OSError(f"docker {command}: {lines[-1] if lines else 'no message'}")


def find(name: str) -> dict[str, Any] | None:
    """The engine's record of the image with a name; None if it has no such image."""
    try:
        return dict(docker("image", "inspect", name)[0])
    except OSError as error:
        if "no such image" in str(error).lower():
            return None
        raise


def layers_in_common(layers: list[str]) -> int:
    """The number of the lowest layers that an image here has: a layer depends on those below it."""
    listed = subprocess.run(
        ["docker", "image", "ls", "--quiet", "--no-trunc"], capture_output=True, text=True, check=False
    ).stdout.split()
    stored = docker("image", "inspect", *dict.fromkeys(listed)) if listed else []
    return max((_in_common(layers, image["RootFS"].get("Layers") or []) for image in stored), default=0)


def _in_common(layers: list[str], image_layers: list[str]) -> int:
    same = (layer == other for layer, other in zip(layers, image_layers))  # the lengths may differ
    return sum(takewhile(bool, same))


def needs_every_layer() -> bool:
    """Whether this engine keeps images in containerd's store, which takes no archive with layers left out."""
    status = docker("info", "--format", "{{json .DriverStatus}}") or []
    return any("containerd" in str(value) for pair in status for value in pair)


def load(archive: Iterable[bytes]) -> None:
    """Load an archive into the engine; OSError with its message if it refuses."""
    pipe = subprocess.PIPE
    with subprocess.Popen(["docker", "load", "--quiet"], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin and process.stderr  # noqa: S101  # both are pipes
        with contextlib.suppress(BrokenPipeError):  # it may refuse early; its message has the reason
            process.stdin.writelines(archive)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        said = process.stderr.read()
    if process.returncode:
        raise _refused("load", said)


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
