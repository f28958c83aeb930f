"""What the templates make of many inventories, judged by the programs that read it: sshd, ssh and chronyd."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.bare_hosts import run
from tests.ansible.rendering import problems_of, render, render_value
from tests.ansible.test_problems import SEEN

INVENTORIES: dict[str, dict[str, dict[str, Any]]] = {
    "one host": {"node1": {"addresses": ["10.0.0.1"]}},
    "names with dots": {f"gpu-{n}.example.org": {"addresses": [f"10.0.0.{n}"]} for n in range(1, 4)},
    "IPv6": {f"node{n}": {"addresses": [f"10.0.0.{n}", f"fd00::{n:x}"]} for n in range(1, 4)},
    "other ports, users and a data network": {
        "a": {"addresses": ["192.168.7.1", "10.0.0.1"], "port": 2200, "muster_port": 2200}
        | {"muster_addr": "192.168.7.1"},
        "b": {"addresses": ["b-data", "10.0.0.2"], "muster_user": "ml", "muster_addr": "b-data"},
    },
    "256 hosts": {f"node{n:03}": {"addresses": [f"10.0.{n // 250}.{n % 250 + 1}"]} for n in range(256)},
}


def accepts(container: str, text: str, *argv: str) -> None:
    """A program in the container of the site's clock reads a text as its configuration, without complaint."""
    done = run("docker", "exec", "--interactive", container, *argv, stdin=text)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(params=list(INVENTORIES))
def inventory(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    return INVENTORIES[request.param]


@pytest.mark.parametrize("algorithms", ["current", "stock"])
def test_sshd_accepts_its_drop_in(clock: str, inventory: dict[str, dict[str, Any]], algorithms: str) -> None:
    variables = {"hardening_algorithms": algorithms, "hardening_allow_users": ["root", "ml"]}
    lines = render("hardening", "hardening.conf.j2", inventory, **variables)
    for own in ("", lines):
        text = render("ssh_trust", "sshd.conf.j2", inventory, hardening_lines=own)
        assert ("PasswordAuthentication no\n" in text) is bool(own)
        accepts(clock, text, "/usr/sbin/sshd", "-t", "-f", "/dev/stdin")


def test_an_older_sshd_is_not_told_what_it_does_not_know() -> None:
    without: dict[str, Any] = {"settings": {}, "defaults": {}}
    seen = {"sshd": "9.2", "operator": {"client": "192.0.2.9"}, "account": {}, "sshd_without": without}
    text = render("ssh_trust", "sshd.conf.j2", INVENTORIES["IPv6"], muster_seen=seen, hardening_lines="")
    assert "PerSourcePenalt" not in text


def test_ssh_reads_the_written_configuration(inventory: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    for template, user in (("ssh_config.j2", "muster"), ("client.conf.j2", "root")):
        path = tmp_path / template
        path.write_text(render("ssh_trust", template, inventory, muster_user=user))
        for name, host in list(inventory.items())[-2:]:
            done = run("ssh", "-T", "-G", "-F", str(path), name)
            assert (done.returncode, done.stderr) == (0, "")
            said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
            assert said["stricthostkeychecking"] == "true"
            assert said["batchmode"] == "yes"
            assert said["user"] == host.get("muster_user", "muster")
            assert said["port"] == str(host.get("port", 22))


def test_a_jump_host_of_the_cluster_is_passed_with_the_operators_own_login(tmp_path: Path) -> None:
    own, made = tmp_path / "my config", tmp_path / "ssh_config"
    own.write_text(
        "Host node2\n ProxyJump node1\nHost node3\n ProxyJump bastion,ops@node1:2022\n"
        "Host node4\n ProxyJump ssh://node1:22\nHost *\n User me\n"
    )
    names = ("node1", "node2", "node3", "node4")
    hosts: dict[str, dict[str, Any]] = {name: {"addresses": []} for name in names}
    made.write_text(render("ssh_trust", "ssh_config.j2", hosts, ssh_trust_operator_config=str(own)))
    for name, through in (
        ("node1", []),
        ("node2", [f"proxycommand ssh -F '{own}' -W '[%h]:%p' ssh://node1"]),
        ("node3", [f"proxycommand ssh -F '{own}' -J bastion -W '[%h]:%p' ssh://ops@node1:2022"]),
        ("node4", [f"proxycommand ssh -F '{own}' -W '[%h]:%p' ssh://node1:22"]),
    ):
        lines = run("ssh", "-G", "-F", str(made), name).stdout.splitlines()
        assert "user muster" in lines
        assert [line for line in lines if line.startswith("proxycommand")] == through


def test_ssh_knows_every_name_and_address(inventory: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_text(render("ssh_trust", "known_hosts.j2", inventory))
    for name, host in list(inventory.items())[-2:]:
        places = [name, *host["addresses"]]
        places += [f"[{place}]:{host['port']}" for place in places if "port" in host]
        for place in places:
            assert run("ssh-keygen", "-F", place, "-f", str(path)).returncode == 0, place


KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIHugDaPm3Yt7vICHzFMUnB8nSkFeVR6SJMSlgh4Wsq+m"
HONEST: dict[str, Any] = {
    "addresses": ["10.0.0.1", "fd00::1"],
    "hostname": "GPU-1",
    "operator": {"port": "22"},
    "host_keys": {"ssh-ed25519": KEY},
    "node_host_key": f"ssh-ed25519 {KEY}",
}
LINE = f"a,GPU-1,10.0.0.1,fd00::1 ssh-ed25519 {KEY}"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({}, LINE),
        ({"hostname": "a.example.org"}, LINE.replace("GPU-1", "a.example.org")),
        *(
            ({"hostname": hostname}, LINE.replace("GPU-1,", ""))
            for hostname in (
                "*",
                "github.com",
                "b",
                "B",
                "x\n@cert-authority *",
                "a,b",
                "a\n",
                "!a",
                "-a",
                "[a]:22",
            )
        ),
        *(
            ({"addresses": [*HONEST["addresses"], address]}, LINE)
            for address in (
                "*",
                "github.com",
                "0.0.0.0/0",
                "10.0.0.9\n",
                "1,b",
                "10.0.0.?",
                "10.0",
                "FD00::2",
                "fd00::1%eth0",
                "",
                *("999.999.999.999", "10.0.0.09", "0.0.0.0", "0.0.0.1", "127.0.0.1", "224.0.0.1"),  # noqa: S104
                *("255.255.255.255", "::", "::1", "ff02::1", "::ffff:10.0.0.9", "::::"),
            )
        ),
        *(
            ({"host_keys": {"ssh-ed25519": KEY, kind: key}}, LINE)
            for kind, key in {
                "ssh-dss": KEY,
                "@cert-authority *": KEY,
                "ssh-rsa\n*": KEY,
                "ssh-rsa": f"{KEY}\n* ssh-rsa {KEY}",
                "ecdsa-sha2-nistp256": "short",
            }.items()
        ),
        ({"host_keys": {"ssh-ed25519": f"{KEY}\n* ssh-ed25519 {KEY}"}}, ""),
    ],
)
def test_a_host_is_known_by_its_own_names_addresses_and_keys(said: dict[str, Any], line: str) -> None:
    probed = {"preflight_probe": {"stdout": "{}"}, "muster_addr": "data-b"}
    inventory = {"a": probed | {"muster_seen": HONEST | said}, "b": probed | {"muster_seen": HONEST}}
    del inventory["a"]["muster_addr"]
    inventory["b"]["muster_seen"] = HONEST | {"addresses": ["10.0.0.2"], "hostname": "b"}
    known = render_value("preflight", "preflight_known_now", inventory)
    assert known["b"]["addresses"] == ["data-b", "10.0.0.2"]  # an addr= is the operator's own word
    text = render("ssh_trust", "known_hosts.j2", inventory, muster_known=known)
    assert text.splitlines() == [*([line] if line else []), f"b,data-b,10.0.0.2 ssh-ed25519 {KEY}"]
    assert not known["a"]["node_host_key"] or known["a"]["node_host_key"] == f"ssh-ed25519 {KEY}"


def known_of(claimed: list[str], names: dict[str, list[str]], **of_b: str) -> dict[str, Any]:
    """What is known of `a`, which claims addresses, and of `b`, which has 10.0.0.2; `names`: of all hosts."""
    seen = HONEST | {"names": names}
    inventory: dict[str, dict[str, Any]] = {
        "a": {"muster_seen": seen | {"addresses": [*HONEST["addresses"], *claimed]}},
        "b": {"muster_seen": seen | {"addresses": ["10.0.0.2"], "hostname": "b"}} | of_b,
    }
    for host in inventory.values():
        host["preflight_probe"] = {"stdout": "{}"}
    known: dict[str, Any] = render_value("preflight", "preflight_known_now", inventory)
    return known


@pytest.mark.parametrize("names", [{"b": ["10.0.0.2"]}, {"b": ["10.0.0.2", "fd00::2"], "a": ["10.0.0.1"]}])
def test_an_address_of_another_host_is_refused_with_both_names(names: dict[str, list[str]]) -> None:
    known = known_of(["10.0.0.2"], names)
    assert known["a"]["addresses"] == HONEST["addresses"]
    assert (known["a"]["disputed"], known["b"]["disputed"]) == ({"10.0.0.2": "b"}, {"10.0.0.2": "a"})
    for name, other in (("a", "b"), ("b", "a")):
        inventory: dict[str, dict[str, Any]] = {other: {}, name: {}}
        text = "\n".join(problems_of(inventory, muster_seen=SEEN, muster_known=known))
        assert f"its address 10.0.0.2 is also that of {other}, which other hosts reach there" in text


def test_an_addr_is_its_hosts_own_whoever_claims_it() -> None:
    known = known_of(["10.0.0.2"], {}, muster_addr="10.0.0.2")
    assert (known["a"]["addresses"], known["b"]["addresses"]) == (HONEST["addresses"], ["10.0.0.2"])
    assert (known["a"]["disputed"], known["b"]["disputed"]) == ({"10.0.0.2": "b"}, {})


def test_the_address_of_a_bridge_that_two_hosts_have_is_neithers_and_stops_nothing() -> None:
    known = known_of(["10.0.0.2"], {"b": ["10.0.0.7"]})
    assert known["b"]["addresses"] == []
    assert known["a"]["disputed"] == known["b"]["disputed"] == {}


def test_a_node_containers_key_is_a_key() -> None:
    seen = HONEST | {"node_host_key": f"ssh-ed25519 {KEY}\n* ssh-ed25519 {KEY}"}
    inventory = {"a": {"preflight_probe": {"stdout": "{}"}, "muster_seen": seen}}
    assert render_value("preflight", "preflight_known_now", inventory)["a"]["node_host_key"] == ""


@pytest.mark.parametrize("mode", ["public", "head", "isolated"])
@pytest.mark.parametrize("role", ["head", "worker"])
def test_chronyd_accepts_its_configuration(
    clock: str, inventory: dict[str, dict[str, Any]], mode: str, role: str
) -> None:
    name = list(inventory)[0 if role == "head" else -1]
    text = render("time_sync", "chrony.conf.j2", inventory, time_sync_mode=mode, inventory_hostname=name)
    accepts(clock, text, "/usr/sbin/chronyd", "-p", "-f", "/dev/stdin")


@pytest.mark.parametrize(
    ("choices", "name", "present", "absent"),
    [
        (
            {},
            "node2",
            ["pool 2.debian.pool.ntp.org iburst maxsources 4", "minsources 2", "port 0"],
            ["local"],
        ),
        ({"time_sync_servers": ["10.0.0.9"]}, "node2", ["server 10.0.0.9 iburst"], ["pool", "minsources"]),
        ({"time_sync_mode": "head"}, "node1", ["pool 2.", "local stratum 10 orphan"], ["port 0"]),
        ({"time_sync_mode": "head"}, "node2", ["server node1 iburst minpoll 2"], ["pool", "local"]),
        ({"time_sync_mode": "isolated"}, "node1", ["local stratum 10"], ["pool", "server ", "orphan"]),
    ],
    ids=["public", "the site's server", "the head", "a worker of the head", "isolated"],
)
def test_a_vendors_pool_is_asked_and_a_head_without_sources_still_leads(
    choices: dict[str, Any], name: str, present: list[str], absent: list[str]
) -> None:
    inventory = {node: {"addresses": [f"10.0.0.{node[-1]}"]} for node in ("node1", "node2")}
    text = render("time_sync", "chrony.conf.j2", inventory, inventory_hostname=name, **choices)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [word for word in present if not any(line.startswith(word) for line in lines)] == []
    assert [word for word in absent if any(word in line for line in lines)] == []


@pytest.mark.parametrize(
    ("hard", "expected"),
    [
        ({"memlock": -1, "nofile": 1 << 20}, {"memlock": "unlimited", "nofile": "1048576"}),
        ({"memlock": 8 << 20, "nofile": 20000}, {"memlock": "8192", "nofile": "20000"}),
    ],
    ids=["a host", "a container that cannot raise them"],
)
def test_limits_go_as_far_as_the_host_lets_them(hard: dict[str, int], expected: dict[str, str]) -> None:
    text = render("ssh_trust", "limits.conf.j2", INVENTORIES["one host"], muster_seen={"hard_limits": hard})
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert {name: value for _, _, name, value in lines} == expected
    assert {user for user, *_ in lines} == {"muster"}


def test_ansible_stays_out_of_this_process() -> None:
    assert render("ssh_trust", "limits.conf.j2", INVENTORIES["one host"])
    assert "ansible" not in sys.modules


def test_a_host_gets_the_clusters_key_only_if_it_logs_in_to_others() -> None:
    inventory = {name: {"addresses": [f"10.0.0.{number}"]} for number, name in enumerate(("a", "b", "c"), 1)}

    def lines(**choices: object) -> list[str]:
        text = render("ssh_trust", "authorized_keys.j2", inventory, ssh_trust_public_keys=["KEY"], **choices)
        return [line for line in text.splitlines() if not line.startswith("#")]

    def holds(**choices: object) -> bool:
        return bool(render_value("ssh_trust", "ssh_trust_holds_key", inventory, **choices))

    assert lines() == ['from="10.0.0.1,192.0.2.9",restrict,pty KEY']
    assert not holds()
    several = {"ssh_trust_heads": ["b", "c"], "ssh_trust_from": ["10.9.0.0/16"]}
    assert lines(**several) == ['from="10.0.0.2,10.0.0.3,192.0.2.9,10.9.0.0/16",restrict,pty KEY']
    assert holds(**several)
    assert lines(ssh_trust_heads=[]) == ['from="192.0.2.9",restrict,pty KEY']
    assert not holds(muster_stack="node")


@pytest.mark.parametrize(
    ("limits", "asked", "seconds"),
    [((45, 20), 0, 45), ((20, 0), 0, 120), ((600, 0), 0, 600), ((45, 20), "8", 8)],
    ids=["the longest", "one without a limit", "longer than OpenSSH's own", "asked for"],
)
def test_a_rotation_waits_as_long_as_a_login(limits: tuple[int, ...], asked: object, seconds: int) -> None:
    said = {
        f"node{number}": {"ssh_trust_sshd_has": {"stdout": f"port 22\nlogingracetime {limit}\nusepam yes"}}
        for number, limit in enumerate(limits)
    }
    assert render_value("ssh_trust", "ssh_trust_wait", said, ssh_trust_login_seconds=asked) == seconds


def test_verify_logs_in_to_no_host_that_is_away() -> None:
    inventory: dict[str, dict[str, object]] = {"away": {}, "there": {}, "here": {}}
    answers = {"ansible_play_hosts": ["there", "here"]}
    assert render_value("ssh_trust", "ssh_trust_next", inventory) == "away"
    assert render_value("ssh_trust", "ssh_trust_next", inventory, **answers) == "there"
    alone = {"ansible_play_hosts": ["here"]}
    assert render_value("ssh_trust", "ssh_trust_next", inventory, **alone) == "here"


def test_a_host_stays_in_the_record_of_setup_until_it_is_cleaned() -> None:
    known = {"node1": {"user": "muster", "clock_mode": "head"}}
    earlier = {"node1": {"user": "old"}, "node2": {"user": "ml", "ssh_port": 2200}, "node3": {"user": "ml"}}
    inventory: dict[str, dict[str, object]] = {"node1": {}, "node2": {}}

    def record(**variables: object) -> object:
        return json.loads(render("ssh_trust", "hosts.json.j2", inventory, muster_known=known, **variables))

    assert record(muster_recorded_hosts=earlier, time_sync_chosen="public") == {
        "node1": {"user": "muster", "clock_mode": "public"},
        "node2": {"user": "ml", "ssh_port": 2200, "left_out": True},
        "node3": {"user": "ml", "left_out": False},
    }
    assert record(muster_recorded_hosts={}) == known
