"""What preflight refuses, one host at a time: each refusal says what is wrong, and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ansible.rendering import problems_of
from tests.ansible.test_problems import SEEN

FIT: dict[str, Any] = SEEN | {
    "disk_free_mb": 30000,
    "hostname": "node2",
    "host_keys": {"ssh-ed25519": "AAAAnode2"},
    "names": {"node1": ["10.0.0.1"], "node2": ["10.0.0.2"]},
}


def problems(seen: dict[str, Any], other: dict[str, Any] | None = None, **variables: object) -> list[str]:
    """The lines for node2, which is seen so, beside node1."""
    node1 = {"hostname": "node1", "host_keys": {"ssh-ed25519": "AAAAnode1"}} | (other or {})
    inventory: dict[str, dict[str, Any]] = {"node1": {}, "node2": {}}
    if "addr" in variables:
        inventory["node1"]["muster_addr"] = variables.pop("addr")
    known = {"node1": node1, "node2": {"hostname": "node2", "host_keys": FIT["host_keys"]}}
    return problems_of(inventory, muster_seen=FIT | seen, muster_known=known, **variables)


def test_a_host_that_is_fit_has_no_problem() -> None:
    assert problems({}) == []


@pytest.mark.parametrize(
    ("seen", "variables", "said"),
    [
        (
            {"os": {"id": "fedora", "version": "42"}},
            {},
            "fedora 42 is not supported; these are: debian 12, 13; ubuntu 22.04, 24.04, 26.04; rocky 9, 10; "
            "almalinux 9, 10",
        ),
        ({"python": "3.8.10"}, {}, "Python 3.8.10 is too old; 3.9 or newer is needed"),
        ({"systemd": False}, {}, "systemd is not running; services could not be managed"),
        ({"disk_free_mb": 1999}, {}, "/var has 1999 MB free; 2000 MB are needed"),
        ({"disk_free_mb": 19999}, {"muster_stack": "node"}, "/var has 19999 MB free; 20000 MB are needed"),
        (
            {},
            {"muster_user": "root"},
            "user=root in hosts.txt: jobs run as an ordinary user; leave it out for the account muster",
        ),
        (
            {},
            {"muster_stack": "node", "muster_port": 2200},
            "port= in hosts.txt is the driver's way in, and that of a node container is 2222, its image's; "
            "the port of the host's own sshd belongs in ~/.ssh/config",
        ),
        ({"host_keys": {}}, {}, "no host key in /etc/ssh; make them with: ssh-keygen -A"),
        (
            {"names": {"node1": []}},
            {},
            "the name node1 is not known here; add it to DNS or /etc/hosts, or give node1 an addr= in "
            "hosts.txt",
        ),
        (
            {"names": {"node2": ["127.0.1.1"]}},
            {},
            "the name node2 is 127.0.1.1 here, which no other host can reach; give it its address in "
            "/etc/hosts, or an addr= in hosts.txt",
        ),
        (
            {"names": {"node2": ["::1", "10.0.0.2"]}},
            {},
            "the name node2 is ::1, 10.0.0.2 here, which no other host can reach; give it its address in "
            "/etc/hosts, or an addr= in hosts.txt",
        ),
        (
            {"hostname": "node1"},
            {},
            "its host name node1 is also that of node1; give it its own with: hostnamectl set-hostname node2",
        ),
        (
            {"host_keys": {"ssh-ed25519": "AAAAnode1"}},
            {},
            "its host key (ssh-ed25519) is also that of node1, as on disks copied from one image; on one of "
            "them: rm /etc/ssh/ssh_host_*; ssh-keygen -A",
        ),
    ],
)
def test_each_refusal_has_a_remedy(seen: dict[str, Any], variables: dict[str, Any], said: str) -> None:
    assert problems(seen, **variables) == [said]


@pytest.mark.parametrize(
    "seen",
    [
        {"os": {"id": "debian", "version": "12"}},
        {"os": {"id": "ubuntu", "version": "24.04"}},
        {"os": {"id": "rocky", "version": "9.5"}},
        {"python": "3.9.2"},
        {"python": "3.10.12"},
        {"disk_free_mb": 2000},
    ],
    ids=str,
)
def test_what_is_just_good_enough_is_let_in(seen: dict[str, Any]) -> None:
    assert problems(seen) == []


def test_a_name_that_has_an_address_in_the_hosts_file_need_not_be_known() -> None:
    assert problems({"names": {"node1": []}}, addr="10.0.0.1") == []


def test_everything_that_is_wrong_is_said_at_once() -> None:
    wrong = {"python": "3.8.10", "systemd": False, "disk_free_mb": 1, "host_keys": {}}
    assert len(problems(wrong, muster_user="root")) == 5
