"""A host whose key is unknown is refused, whatever the operator's own configuration of ssh would accept."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ansible.bare_hosts import BOOKS, PATH, run

if find_spec("ansible") is None:
    pytest.skip("Ansible is not installed", allow_module_level=True)

# Instead of a login: the options that ssh would take for the command line that Ansible makes.
ASKED = '#!/bin/sh\nexec ssh -G "$@"\n'


@pytest.mark.parametrize("accepted", ["no", "accept-new", "ask"])
def test_an_unknown_host_key_is_refused_whatever_ssh_would_accept(tmp_path: Path, accepted: str) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host *\n  Port 2200\n  StrictHostKeyChecking {accepted}\n")
    (tmp_path / "hosts.txt").write_text("node1 slots=1\n")
    ssh = tmp_path / "ssh"
    ssh.write_text(ASKED)
    ssh.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")} | {
        "PATH": PATH,
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_SSH_EXECUTABLE": str(ssh),
        "ANSIBLE_SSH_COMMON_ARGS": f"-F {config}",
    }
    inventory = ("--inventory", str(tmp_path / "hosts.txt"))
    done = run(
        "ansible", "cluster", *inventory, "-m", "ansible.builtin.raw", "-a", "true", cwd=BOOKS, env=env
    )
    options = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert options["port"] == "2200", done.stdout + done.stderr  # of the operator's configuration
    assert options["stricthostkeychecking"] in ("true", "yes")  # the former of OpenSSH's own versions
