"""The workflows of GitHub Actions: their steps are scripts and targets that run by hand too."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.deploy.features.image.image_versions import load, targets

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").iterdir()}
VERSION = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]
LOGIN = {"REGISTRY_USER": "me", "REGISTRY_TOKEN": "secret"}
# An image is in the registry if the fake engine has a file of its name.
DOCKER = """#!/bin/sh
case "$1 $2 $3" in
  "version --format "*) echo amd64 ;;
  "buildx inspect "*) exit 1 ;;
  "buildx imagetools inspect") [ -e "$HERE/$(basename "$4")" ] ;;
  *) echo "docker $*"; if [ "$1" = login ]; then echo "password: $(cat)"; fi ;;
esac
"""


def steps() -> list[dict[str, Any]]:
    jobs = [job for workflow in WORKFLOWS.values() for job in workflow["jobs"].values()]
    return [step for job in jobs for step in job["steps"]]


def test_every_step_is_a_script_or_a_target_of_this_checkout() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = [step["run"] for step in steps() if "run" in step]
    assert len(commands) == 7
    for command in commands:
        program, *words = command.removeprefix("sudo ").split()
        if program == "make":
            assert re.search(rf"^{words[0]}:", makefile, re.MULTILINE), command
        elif not command.startswith("docker pull --quiet debian:"):
            assert os.access(ROOT / program, os.X_OK), command


def test_what_others_wrote_is_pinned_by_its_commit() -> None:
    used = [step["uses"] for step in steps() if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used)


def test_the_release_builds_targets_that_there_are() -> None:
    jobs = WORKFLOWS["release.yml"]["jobs"]
    built = {one["target"] for one in jobs["images"]["strategy"]["matrix"]["include"]}
    assert built == {*jobs["names"]["strategy"]["matrix"]["target"]}
    assert built <= {*targets(load().values())}


def run(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    docker = folder / "docker"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        words,
        cwd=ROOT,
        env={"PATH": path, "HERE": str(folder), "REGISTRY": "ghcr.io/Owner/muster", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_an_image_is_pushed_with_its_bill_of_materials_and_provenance(tmp_path: Path) -> None:
    done = run(tmp_path, ".ci/push-image", "build", "cpu", **LOGIN)
    login, password, create, bake = done.stdout.splitlines()
    assert (login, password) == ("docker login --username me --password-stdin ghcr.io", "password: secret")
    assert "--driver docker-container" in create
    assert "--push --sbom=true --provenance=mode=max" in bake
    assert bake.endswith(f"--set cpu.tags=ghcr.io/owner/muster:cpu-{VERSION}-amd64 cpu")


@pytest.mark.parametrize("processors", [("amd64",), ("amd64", "arm64")])
def test_the_images_of_all_processors_get_one_name(tmp_path: Path, processors: tuple[str, ...]) -> None:
    names = [f"muster:cpu-{VERSION}-{processor}" for processor in processors]
    for name in names:
        (tmp_path / name).touch()
    done = run(tmp_path, ".ci/push-image", "join", "cpu")
    wanted = " ".join(f"ghcr.io/owner/{name}" for name in names)
    command = f"docker buildx imagetools create --tag ghcr.io/owner/muster:cpu-{VERSION} {wanted}\n"
    assert (done.returncode, done.stdout) == (0, command)


def test_a_name_for_no_image_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, ".ci/push-image", "join", "cpu")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no image ghcr.io/owner/muster:cpu-" in done.stderr


def test_a_release_needs_a_section_of_the_changelog(tmp_path: Path) -> None:
    done = run(tmp_path, ".ci/publish-release", "v0.0.7", DRY_RUN="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "CHANGELOG.md has no section 0.0.7\n"
