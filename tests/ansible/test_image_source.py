"""A node's image comes from its registry, or from this machine if the registry does not give it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.ansible.bare_hosts import BOOKS, PATH, run

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = "images.test/team/node:1"
ENGINE = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$1" in
  pull) echo "Error response from daemon: no basic auth credentials" >&2; exit {status} ;;
  image) exit 1 ;;
  save) echo layers > "$3" ;;
esac
"""
PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  vars:
    muster_engine_command: {folder}/docker
    muster_folder: {folder}
    muster_seen: {{folders: [], new_packages: {{}}}}
    muster_present: []
    node_image: {image}
    node_image_archive: ""
    node_record: {folder}/lib/node.json
    preflight_image_source: registry
    preflight_image_is_here: {is_here}
  tasks:
    - ansible.builtin.import_role: {{name: node, tasks_from: image, rolespec_validate: false}}
"""


@pytest.mark.parametrize(
    ("status", "is_here", "calls"),
    [(0, False, ["pull"]), (1, True, ["pull", "image", "save", "load"]), (1, False, ["pull"])],
    ids=["pulled", "copied", "nowhere"],
)
def test_an_image_is_pulled_or_copied(tmp_path: Path, status: int, is_here: bool, calls: list[str]) -> None:
    (tmp_path / "docker").write_text(ENGINE.format(folder=tmp_path, status=status))
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "play.yml").write_text(
        PLAY.format(folder=tmp_path, image=IMAGE, is_here=str(is_here).lower())
    )
    env = os.environ | {
        "PATH": f"{tmp_path}:{PATH}",
        "ANSIBLE_CONFIG": str(BOOKS / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": str(BOOKS / "roles"),
        "ANSIBLE_NOCOLOR": "1",
    }
    (tmp_path / "hosts.txt").write_text("node1\n")
    done = run("ansible-playbook", "play.yml", "--inventory", "hosts.txt", cwd=tmp_path, env=env)
    text = done.stdout + done.stderr
    made = [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()]
    assert (made, done.returncode) == (calls, 2 if status and not is_here else 0), text
    lack = f"node1: its engine cannot pull {IMAGE}: Error response from daemon: no basic auth credentials"
    assert (lack in " ".join(text.split())) is bool(status and not is_here)
    assert not list(tmp_path.glob("**/image.tar"))
