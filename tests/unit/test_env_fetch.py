"""The files of a lock on this machine: what is here already is used only if it is intact."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.envs import fetch, uv
from muster.deploy.envs.lock import Package
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
    package = Package("digits", "1.0", URL, DIGEST)
    (wheel,) = fetch.wheels([package], "3.12", tmp_path)
    assert fetch.wheels([package], "3.12", tmp_path) == [wheel]
    assert len(downloads) == 1
    DAMAGE[kind](wheel.path)
    (wheel,) = fetch.wheels([package], "3.12", tmp_path)
    assert len(downloads) == 2
    assert (wheel.size, wheel.path.read_bytes()) == (len(CONTENT), CONTENT)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The source archives that were built, without a builder."""
    built: list[str] = []

    def run(words: list[str], doing: str, environment: Any, place: Path) -> str:
        built.append(words[-1])
        (place / "digits-1.0-py3-none-any.whl").write_bytes(CONTENT)
        return ""

    monkeypatch.setattr(uv, "run", run)
    return built


@pytest.mark.usefixtures("downloads")
@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize(
    "of", [lambda wheel: wheel, lambda wheel: wheel.with_name(fetch.BUILT)], ids=["wheel", "record"]
)
def test_a_wheel_that_was_built_here_and_damaged_is_built_again(
    tmp_path: Path, builds: list[str], of: Callable[[Path], Path], kind: str
) -> None:
    package = Package("digits", "1.0", URL.replace("-py3-none-any.whl", ".tar.gz"), DIGEST, sdist=True)
    (wheel,) = fetch.wheels([package], "3.12", tmp_path)
    assert fetch.wheels([package], "3.12", tmp_path) == [wheel]
    assert len(builds) == 1
    DAMAGE[kind](of(wheel.path))
    assert fetch.wheels([package], "3.12", tmp_path) == [wheel]
    assert len(builds) == 2
    assert wheel.path.read_bytes() == CONTENT
