"""What the engine's own tools make of the bake file and of compose.yaml, without building anything."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from muster.deploy.cli import dispatch
from tests.launching import ROOT

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

BAKE = json.loads((ROOT / "docker" / "docker-bake.json").read_text())


@pytest.mark.usefixtures("cluster")  # that is where an engine with buildx is
def test_buildx_reads_every_target_of_the_bake_file() -> None:
    names = list(BAKE["target"])
    command = ("docker", "buildx", "bake", "--file", "docker/docker-bake.json", "--print", *names)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=True)
    read = json.loads(done.stdout)["target"]
    assert {name: target["args"] for name, target in read.items()} == {
        name: BAKE["target"][name]["args"] for name in names
    }


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("target", [*BAKE["target"]][:2])  # those of the others differ by their names
def test_a_build_of_a_target_is_one_by_buildx(
    target: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert dispatch.run(["image", "build", target, "--dry-run"], "muster") == 0
    command = capsys.readouterr().out.splitlines()[-1].split()
    assert command[:3] == ["docker", "buildx", "bake"]
    printed = subprocess.run([*command, "--print"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(printed.stdout)["target"][target]["context"] == str(ROOT)


def services(cluster: Cluster, *profile: str) -> dict[str, Any]:
    return dict(json.loads(cluster.compose(*profile, "config", "--format", "json"))["services"])


def test_the_gpu_profile_reserves_what_gpus_need(cluster: Cluster) -> None:
    with_gpus = services(cluster, "--profile", "gpu")
    one, two = with_gpus["gpu1"], with_gpus["gpu2"]
    for node in (one, two):
        (device,) = node["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", -1, ["gpu"])
        assert node["ulimits"]["memlock"] == -1
    assert int(one["shm_size"]) == 8 << 30
    assert (one["ipc"], two["ipc"], two["pid"]) == ("shareable", "service:gpu1", "service:gpu1")


def test_without_the_profile_there_are_no_gpus(cluster: Cluster) -> None:
    assert set(services(cluster)) == {"node1", "node2", "node3", "keys"}


def test_compose_takes_the_image_of_any_target(cluster: Cluster) -> None:
    env = {name: value for name, value in cluster.env.items() if name != "MUSTER_IMAGE"}
    command = ("docker", "compose", "config", "--format", "json")
    said = subprocess.run(
        command,
        cwd=ROOT,
        env={**env, "MUSTER_TARGET": "cpu-source"},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    read = json.loads(said.stdout)["services"]
    assert {one["image"] for one in read.values()} == {"muster:cpu-source"}
    assert read["keys"]["build"]["args"] == {"FLAVOR": "cpu-source"}
