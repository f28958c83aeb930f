"""The name and the keys of a host that may become lines in files of others."""

from __future__ import annotations

from typing import Any

import pytest

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
