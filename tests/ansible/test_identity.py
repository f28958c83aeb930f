"""The name and the keys of a host that may become lines in files of others."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.bare_hosts import BOOKS, PATH, run
from tests.ansible.programs import loaded

plugin = loaded("preflight/filter_plugins/muster_known.py")
KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIHugDaPm3Yt7vICHzFMUnB8nSkFeVR6SJMSlgh4Wsq+m"


def checked(name: str = "node1", **said: Any) -> dict[str, Any]:
    host = {"hostname": "node1", "host_keys": {}, "node_host_key": "", "port": 22} | said
    found: dict[str, Any] = plugin.own_identity({name: host})[name]
    return found


@pytest.mark.parametrize(
    ("name", "hostname", "is_own"),
    [
        ("node1", "node1", True),
        ("alias", "Node1", True),  # preflight compares such names
        ("node1", "node1.example.org", True),
        ("node1.lan", "node1.example.org", True),
        ("node1", "node2.example.org", False),
        ("node1", "*", False),
        ("node1", "node1,node2", False),
        ("node1", "node1\n* ssh-ed25519", False),
        ("node1", "", False),
    ],
)
def test_a_name_that_cannot_be_its_own_is_replaced(name: str, hostname: str, is_own: bool) -> None:
    assert checked(name, hostname=hostname)["hostname"] == (hostname if is_own else name)


@pytest.mark.parametrize(
    ("kind", "key", "stays"),
    [
        ("ssh-ed25519", KEY, True),
        ("ecdsa-sha2-nistp256", KEY + "==", True),
        ("ssh-dss", KEY, False),
        ("@cert-authority *", KEY, False),
        ("ssh-rsa\n*", KEY, False),
        ("ssh-rsa", "short", False),
        ("ssh-rsa", f"{KEY}\n* ssh-rsa {KEY}", False),
        ("ssh-rsa", f"{KEY}\n", False),
    ],
)
def test_only_keys_of_known_kinds_stay(kind: str, key: str, stays: bool) -> None:
    found = checked(host_keys={kind: key})
    assert (found["host_keys"], found["port"]) == ({kind: key} if stays else {}, 22)


def test_a_node_containers_key_is_one_key() -> None:
    good = f"ssh-ed25519 {KEY}"
    assert checked(node_host_key=good)["node_host_key"] == good
    assert not checked(node_host_key=f"{good}\n* {good}")["node_host_key"]


# -- a host whose key is unknown is refused, whatever the operator's own configuration of ssh would --


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
