"""`muster image.check`: the image proves itself again, and a broken promise is an exit status."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.launching import MUSTER, ROOT

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster


def muster(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (str(MUSTER), *words), cwd=ROOT, capture_output=True, text=True, timeout=540, check=False
    )


@pytest.mark.soak
def test_the_image_keeps_every_promise_and_its_labels_are_true(cluster: Cluster) -> None:
    image = cluster.compose("config", "--images", "keys").strip()
    done = muster("image.check", "--image", image, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert all(kept for _, kept, _ in said["checks"])
    inspect = ("docker", "image", "inspect", "--format", "{{json .Config.Labels}}", image)
    labels = json.loads(subprocess.run(inspect, capture_output=True, text=True, check=True).stdout)
    assert labels["muster.flavor"] == said["flavor"]
    for component, version in said["versions"].items():
        assert labels[f"muster.{component}"] == version


def test_an_image_of_somebody_else_is_refused_with_its_own_words(cluster: Cluster) -> None:
    done = muster("image.check", "--image", "debian:trixie-slim")
    assert done.returncode == 2
    assert "debian:trixie-slim has no proof of its versions" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_image_that_is_not_here_is_named(cluster: Cluster) -> None:
    done = muster("image.check", "--image", "muster:nowhere")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("no image muster:nowhere here; muster image build makes muster:cpu, ")
