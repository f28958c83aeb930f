"""The stack of hosts whose owner has named none: it needs nothing prepared, on this machine or a host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.bare_hosts import BOOKS, PATH
from tests.ansible.rendering import render_value

IMAGE = "muster:cpu"
HOST: dict[str, Any] = {"architecture": "x86_64", "nvidia_cards": 0, "gpu": False}
ENGINE: dict[str, Any] = {
    "architecture": "amd64",
    "builds": True,
    "image": None,
    "named": False,
    "pulls": False,
}
WITH_IMAGE = ENGINE | {"image": {"muster.flavor": "cpu"}}
WITH_CUDA = ENGINE | {"image": {"muster.flavor": "cuda"}}
PULLED = ENGINE | {"architecture": "", "builds": False, "pulls": True}
GPU, ARM = HOST | {"nvidia_cards": 8}, HOST | {"architecture": "aarch64"}


def chosen(here: dict[str, Any], *hosts: dict[str, Any]) -> tuple[str, bool, str]:
    inventory = {
        f"node{number}": {"muster_seen": host} for number, host in enumerate(hosts or (HOST, HOST), 1)
    }
    given: dict[str, Any] = {"preflight_here": here, "node_image": IMAGE}
    obstacle = render_value("preflight", "preflight_no_image", inventory, **given)
    builds = render_value("preflight", "preflight_is_to_build", inventory, **given)
    reason = render_value("preflight", "preflight_image_reason", inventory, **given)
    return "venv" if obstacle else "node", builds and not obstacle, obstacle or reason


@pytest.mark.parametrize(
    ("here", "hosts", "stack", "reason"),
    [
        (ENGINE | {"named": True}, (GPU,), "node", "muster:cpu is named as its image"),
        (WITH_IMAGE, (), "node", "this machine's engine has the image muster:cpu"),
        (ENGINE, (), "node, built", "setup builds muster:cpu in this machine's engine"),
        (ENGINE | {"builds": False}, (), "venv", "has no muster:cpu, and no buildx to build it"),
        (ENGINE | {"architecture": "", "builds": False}, (), "venv", "no container engine answers on"),
        (ENGINE, (HOST, GPU), "venv", "node2 has NVIDIA GPUs, and muster:cpu has no CUDA"),
        (WITH_IMAGE, (HOST, HOST | {"gpu": True}), "venv", "node2 has NVIDIA GPUs"),
        (WITH_CUDA, (GPU, GPU), "node", "has the image muster:cpu"),
        (WITH_IMAGE, (HOST, ARM), "venv", "are for x86_64, hosts are aarch64"),
        (ENGINE | {"architecture": "arm64"}, (ARM, ARM), "node, built", "setup builds"),
        (PULLED, (HOST, ARM), "node", "hosts can pull the image muster:cpu"),
        (PULLED, (HOST, GPU), "venv", "node2 has NVIDIA GPUs, and muster:cpu has no CUDA"),
    ],
)  # fmt: skip
def test_the_stack_is_one_that_needs_nothing_prepared(
    here: dict[str, Any], hosts: tuple[dict[str, Any], ...], stack: str, reason: str
) -> None:
    name, builds, why = chosen(here, *hosts)
    assert (f"{name}, built" if builds else name) == stack
    assert reason in why


CHOICE = """
- hosts: all
  connection: local
  gather_facts: false
  vars: {preflight_stack: "", muster_folder: /nowhere}
  tasks:
    - ansible.builtin.set_fact: {preflight_seen: {architecture: x86_64, nvidia_cards: 0, gpu: false}}
    - ansible.builtin.include_role: {name: preflight, tasks_from: choose}
"""
BUILD = """
- hosts: all
  connection: local
  gather_facts: false
  roles: [node_build]
"""
DOCKER = """#!/bin/sh
case "$1 $2" in
  "version --format") echo amd64 ;;
  "buildx version") echo buildx ;;
  *) exit 1 ;;
esac
"""
NO_DOCKER = "#!/bin/sh\nexit 1\n"


def play(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "ansible.cfg").write_text(f"[defaults]\nroles_path = {BOOKS}/roles:{folder}\n")
    (folder / "play.yml").write_text(text)
    shutil.copytree(BOOKS / "group_vars", folder / "group_vars")
    path = f"{folder}/bin{os.pathsep}{PATH}"
    return subprocess.run(
        ["ansible-playbook", "play.yml", "--inventory", "node1,node2,", *words],
        cwd=folder,
        env={**os.environ, "PATH": path, "ANSIBLE_CONFIG": str(folder / "ansible.cfg")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.mark.parametrize(
    ("docker", "image", "said"),
    [
        (DOCKER, IMAGE, "stack node: setup builds muster:cpu in this machine's engine"),
        (NO_DOCKER, "ghcr.io/a/b:cpu-1", "stack node: hosts can pull the image ghcr.io/a/b:cpu-1"),
    ],
    ids=["engine", "a released image"],
)  # fmt: skip
def test_setup_says_which_stack_hosts_get_and_why(tmp_path: Path, docker: str, image: str, said: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(docker)
    (tmp_path / "bin/docker").chmod(0o755)
    done = play(tmp_path, CHOICE, "-e", f"muster_default_image={image}")
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if '"msg": "stack ' in line]
    assert said in line


@pytest.mark.parametrize("status", [0, 1])
def test_a_build_shows_its_steps_while_it_runs_and_its_end_if_it_fails(tmp_path: Path, status: int) -> None:
    shutil.copytree(BOOKS / "roles/node/action_plugins", tmp_path / "node_build/action_plugins")
    (tmp_path / "node_build/tasks").mkdir()
    program = (
        "import sys; print('#5 [torch-cpu 2/7] RUN apt-get install'); print('#5 0.123 Reading');"
        f"print('#5 no space left', file=sys.stderr); sys.exit({status})"
    )
    tasks = [{"muster_build": {"argv": [sys.executable, "-c", program]}, "run_once": True}]
    (tmp_path / "node_build/tasks/main.yml").write_text(json.dumps(tasks))
    done = play(tmp_path, BUILD)
    assert "\n[torch-cpu 2/7] RUN apt-get install\n" in done.stdout
    assert ("no space left" in done.stdout) == bool(status)
    assert (done.returncode == 0) == (status == 0), done.stdout + done.stderr
