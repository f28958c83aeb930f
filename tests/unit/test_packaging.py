"""What pyproject.toml says of the packages is what the folders are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.deploy.features.image.image_versions import load, targets
from tests.wheel import tracked

ROOT = Path(__file__).parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text()  # tomllib is of Python 3.11


def test_each_package_is_a_folder() -> None:
    """A folder inside needs no line: its files travel with it. tests/local/test_wheel.py looks at a wheel."""
    folders = PYPROJECT.partition("\n[tool.setuptools.package-dir]")[2].partition("\n\n")[0]
    names = PYPROJECT.partition("\npackages = [")[2].partition("]")[0]
    listed = dict(re.findall(r'"(muster[\w.]*)" = "(\w+)"', folders))
    assert sorted(listed) == re.findall(r'"(.+?)"', names)
    assert [name for name in listed.values() if not tracked(name)] == []


def test_a_copy_of_a_checkout_is_the_package_without_an_installation() -> None:
    """As where a job of a checkout runs on a host: the folder muster/ must not hide muster.train."""
    places = ["deploy", "deploy.core.errors", "train"]
    script = (
        "import sys; from importlib.util import find_spec; sys.path.insert(0, sys.argv.pop(1)); "
        "print([bool(find_spec(f'muster.{place}')) for place in sys.argv[1:]])"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, str(ROOT), *places],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[True, True, True]\n", "")


# An editable installation has no hash, and pip then takes none for the rest either. The wheel of torch may
# come from any index. Wheels that were built in the same step come from sources whose sums were compared.
WITHOUT_HASHES = ("--editable", "/wheels/*.whl", "/wheels/torch-*.whl", '"/wheels/$1"/*.whl')
INSTALLS = [
    (name, line.strip())
    for name in tracked("Makefile", "docker", "ansible", ".ci", "compose.yaml")
    if not name.endswith((".md", "/obstacles.j2"))  # which tell people what to do
    for line in (ROOT / name).read_text().replace("\\\n", " ").splitlines()
    if re.search(r"\bpip3? (install|download)\b", line) and not line.lstrip().startswith(("#", "fail_msg:"))
]


@pytest.mark.parametrize(("name", "line"), INSTALLS, ids=[name for name, _ in INSTALLS])
def test_what_the_project_installs_by_pip_is_known_by_its_hash(name: str, line: str) -> None:
    for words in re.split(r"\bpip3? (?:install|download)\b", line)[1:]:
        command = words.split("&&")[0]
        if not any(one in command for one in WITHOUT_HASHES):
            assert "--require-hashes --requirement" in command


@pytest.mark.parametrize("wanted", sorted([*ROOT.glob("docker/requirements/*.in"), *ROOT.glob("tests/*.in")]))
def test_pinned_requirements_are_what_was_asked_for_with_hashes(wanted: Path) -> None:
    pinned = re.split(r"\n(?=[a-z])", wanted.with_suffix(".txt").read_text().lower().replace("_", "-"))[1:]
    assert [one for one in pinned if "--hash=sha256:" not in one or "==" not in one] == []
    names = {one.partition("==")[0] for one in pinned}
    for line in wanted.read_text().lower().replace("_", "-").splitlines():
        if re.match(r"[a-z]", line):
            assert re.match(r"[a-z0-9-]+", line)[0] in names  # type: ignore[index]
            assert "==" not in line or any(one.startswith(f"{line} ") for one in pinned)


# -- the workflows of GitHub Actions: their steps are scripts and targets that run by hand too --


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
