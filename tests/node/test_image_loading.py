"""What docker answers on a host when an image comes to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.deploy.features.image.on_host.images import find, load, needs_every_layer
from tests.slurm import put_programs


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for the test's own docker, the only one on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_an_engine_that_refuses_an_image_before_it_has_all_of_it_says_why(programs: Path) -> None:
    put_programs(programs, docker="head -c 65536 >/dev/null; echo 'no space left on device' >&2; exit 1")
    with pytest.raises(OSError, match="docker load: no space left on device"):
        load(bytes(1 << 20) for _ in range(64))


def test_an_image_that_is_missing_is_told_from_an_engine_that_does_not_answer(programs: Path) -> None:
    put_programs(programs, docker="echo 'Error response from daemon: No such image: x' >&2; exit 1")
    assert find("x") is None
    put_programs(programs, docker="echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    with pytest.raises(OSError, match="docker image: Cannot connect to the Docker daemon"):
        find("x")


@pytest.mark.parametrize(
    ("printed", "every"),
    [
        ('[["driver-type","io.containerd.snapshotter.v1"]]', True),
        ('[["Backing Filesystem","extfs"]]', False),
        ("null", False),
    ],
)
def test_containerds_store_takes_every_layer(programs: Path, printed: str, *, every: bool) -> None:
    put_programs(programs, docker=f"echo '{printed}'")
    assert needs_every_layer() is every
