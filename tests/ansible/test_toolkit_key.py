"""The key of the NVIDIA toolkit's repository, in a play on this machine with a file in place of the URL."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.ansible.bare_hosts import BOOKS, PATH, run

if TYPE_CHECKING:
    from pathlib import Path

PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: container_engine, tasks_from: nvidia}
"""
KEY = "the key\n"


@pytest.mark.parametrize(
    ("served", "before", "status", "after"),
    [
        (KEY, None, 0, KEY),
        (KEY, "an older key\n", 0, KEY),
        ("another key\n", None, 2, None),
    ],
    ids=["the pinned key", "in place of an older one", "another key"],
)
def test_only_the_key_with_the_pinned_checksum_is_installed(
    served: str, before: str | None, status: int, after: str | None, tmp_path: Path
) -> None:
    keyring, source, url = (tmp_path / name for name in ("key.asc", "toolkit.sources", "served"))
    url.write_text(served)
    if before:
        keyring.write_text(before)
    variables = {
        "ansible_python_interpreter": sys.executable,
        "container_engine_nvidia_key": f"file://{url}",
        "container_engine_nvidia_key_sha256": hashlib.sha256(KEY.encode()).hexdigest(),
        "container_engine_keyring": str(keyring),
        "container_engine_source": str(source),
    }
    (tmp_path / "play.yml").write_text(PLAY)
    done = run(
        *("ansible-playbook", "play.yml", "--inventory", "node1,", "--extra-vars", json.dumps(variables)),
        cwd=tmp_path,
        env=os.environ | {"PATH": PATH, "ANSIBLE_ROLES_PATH": str(BOOKS / "roles"), "ANSIBLE_NOCOLOR": "1"},
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert (keyring.read_text() if keyring.exists() else None) == after
    assert source.exists() == (status == 0)
    assert status == 0 or "checksum" in done.stdout
