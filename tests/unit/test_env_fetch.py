"""The files of a lock on this machine: what is here already is used only if it is intact."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest
import requests

from muster.deploy.core.errors import MusterError
from muster.deploy.features.packages import bring as fetch
from muster.deploy.features.packages.bring import Lock, Package
from tests.damage import DAMAGE

CONTENT = b"a wheel" * 100
DIGEST = hashlib.sha256(CONTENT).hexdigest()
URL = "https://index.invalid/files/digits-1.0-py3-none-any.whl"


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were downloaded, without a network."""
    came: list[Path] = []

    def download(package: Package, path: Path, over: threading.Event) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)
        came.append(path)

    monkeypatch.setattr(fetch, "_download", download)
    return came


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_wheel_that_was_damaged_here_is_downloaded_again(
    tmp_path: Path, downloads: list[Path], kind: str
) -> None:
    lock = Lock("ab" * 10, "requirements.txt", "3.12", (Package("digits", "1.0", URL, DIGEST),), "")
    (wheel,) = fetch.fetch_wheels(lock, tmp_path)
    assert fetch.fetch_wheels(lock, tmp_path) == [wheel]
    assert len(downloads) == 1
    DAMAGE[kind](wheel.path)
    (wheel,) = fetch.fetch_wheels(lock, tmp_path)
    assert len(downloads) == 2
    assert (wheel.size, wheel.path.read_bytes()) == (len(CONTENT), CONTENT)


@pytest.mark.parametrize(
    ("variables", "file"),
    [
        ({}, True),
        ({"SSL_CERT_FILE": "/a"}, "/a"),
        ({"SSL_CERT_FILE": "/a", "REQUESTS_CA_BUNDLE": "/b"}, "/b"),
    ],
)
def test_a_download_trusts_the_authorities_that_uv_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], file: str | bool
) -> None:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    trusted: list[object] = []

    def get(url: str, **options: object) -> None:
        trusted.append(options["verify"])
        raise requests.ConnectionError("no network")

    monkeypatch.setattr(requests, "get", get)
    lock = Lock("ab" * 10, "requirements.txt", "3.12", (Package("digits", "1.0", URL, DIGEST),), "")
    with pytest.raises(MusterError, match="cannot be downloaded here"):
        fetch.fetch_wheels(lock, tmp_path)
    assert trusted == [file]


def test_an_interrupt_does_not_wait_for_a_silent_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = threading.Event()

    def download(package: Package, path: Path, over: threading.Event) -> None:
        if package.name == "silent":
            silent.wait()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)

    def interrupt(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "_download", download)
    packages = (Package("silent", "1.0", f"{URL}x", "0" * 64), Package("digits", "1.0", URL, DIGEST))
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch_wheels(Lock("ab" * 10, "requirements.txt", "3.12", packages, ""), tmp_path, interrupt)
    silent.set()
