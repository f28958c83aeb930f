"""No secret and no cache in any layer of any image of Muster that this machine has."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

KEY_NAME = re.compile(r"(^|/)(ssh_host_\w+_key|id_(rsa|ecdsa|ed25519)|authorized_keys)$")
# A whole key: programs hold the first line.
KEY_TEXT = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\r?\n[A-Za-z0-9+/=]{16}")
CACHES = re.compile(
    r"(^|/)(ccache/.|root/\.cache/.|run/secrets/.|var/cache/apt/.*\.deb|var/lib/apt/lists/.+_)"
)


def unwanted(layer: IO[bytes]) -> Iterator[str]:
    """Names of the files in a layer that are keys by name, small files that hold one, and caches."""
    with tarfile.open(fileobj=layer, mode="r|*") as files:
        for file in files:
            content = files.extractfile(file) if file.isfile() and file.size < 65536 else None
            named = KEY_NAME.search(file.name) or (file.isfile() and CACHES.search(file.name))
            if named or (content and KEY_TEXT.search(content.read())):
                yield file.name


def ask(*words: str) -> str:
    return subprocess.run(("docker", *words), capture_output=True, text=True, check=True).stdout


def scan(image: str) -> list[list[str]]:
    """What is unwanted in each layer of an image."""
    scanned: list[list[str]] = []
    with (
        subprocess.Popen(("docker", "save", image), stdout=subprocess.PIPE) as save,
        tarfile.open(fileobj=save.stdout, mode="r|") as parts,
    ):
        for part in parts:
            if blob := parts.extractfile(part) if part.isfile() else None:
                # The image's JSON files are no archives; layers are counted below.
                with contextlib.suppress(tarfile.ReadError):
                    scanned.append(list(unwanted(blob)))
    assert save.returncode == 0
    return scanned


@pytest.mark.soak
def test_no_layer_of_any_image_holds_a_key_or_a_cache(cluster: Cluster) -> None:
    ours = ask("images", "--filter", "label=muster.flavor", "--format", "{{.Repository}}:{{.Tag}}", "muster")
    for image in {cluster.compose("config", "--images", "keys").strip(), *ours.split()}:
        layers = json.loads(ask("image", "inspect", "--format", "{{json .RootFS.Layers}}", image))
        assert scan(image) == [[]] * len(set(layers)), image


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("etc/ssh/ssh_host_rsa_key", b""),
        ("home/muster/.ssh/authorized_keys", b""),
        ("opt/notes", b"x\n-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n"),
        ("ccache/0/1.R", b""),
        ("run/secrets/ca", b""),
        ("var/cache/apt/archives/tini_0.19.deb", b""),
        ("./root/.cache/pip/http-v2/a", b""),
    ],
)
def test_the_scan_finds_what_is_planted(name: str, text: bytes) -> None:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        planted = tarfile.TarInfo(name)
        planted.size = len(text)
        files.addfile(planted, io.BytesIO(text))
    layer.seek(0)
    assert list(unwanted(layer)) == [name]
