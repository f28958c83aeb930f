"""The key of the NVIDIA toolkit's repository, in a play on this machine with a file in place of the URL."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import TYPE_CHECKING

from tests.ansible.bare_hosts import BOOKS, PATH, recap, run

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


# What is served, what the host had before, what it has then.
HOSTS = {
    "pinned": (KEY, None, KEY),
    "older": (KEY, "an older key\n", KEY),
    "another": ("another key\n", None, None),
}


def test_only_the_key_with_the_pinned_checksum_is_installed(tmp_path: Path) -> None:
    for name, (served, before, _) in HOSTS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "served").write_text(served)
        if before:
            (tmp_path / name / "key.asc").write_text(before)
    folder = f"{tmp_path}/{{{{ inventory_hostname }}}}"
    variables = {
        "ansible_python_interpreter": sys.executable,
        "container_engine_nvidia_key": f"file://{folder}/served",
        "container_engine_nvidia_key_sha256": hashlib.sha256(KEY.encode()).hexdigest(),
        "container_engine_keyring": f"{folder}/key.asc",
        "container_engine_source": f"{folder}/toolkit.sources",
    }
    (tmp_path / "play.yml").write_text(PLAY)
    done = run(
        *("ansible-playbook", "play.yml", "--inventory", ",".join(HOSTS)),
        *("--extra-vars", json.dumps(variables)),
        cwd=tmp_path,
        env=os.environ | {"PATH": PATH, "ANSIBLE_ROLES_PATH": str(BOOKS / "roles"), "ANSIBLE_NOCOLOR": "1"},
    )
    failed = {name for name, host in recap(done.stdout).items() if host["failed"]}
    assert (done.returncode, failed) == (2, {"another"}), done.stdout + done.stderr
    assert "checksum" in done.stdout
    for name, (_, _, after) in HOSTS.items():
        keyring = tmp_path / name / "key.asc"
        assert (keyring.read_text() if keyring.exists() else None) == after
        assert (tmp_path / name / "toolkit.sources").exists() == bool(after)
