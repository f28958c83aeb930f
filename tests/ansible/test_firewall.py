"""Firewalls that turn away what nobody allowed: the cluster's own addresses pass, and no others do."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.ansible.bare_hosts import ADDRESSES, BOOKS, NETWORK, Hosts, run
from tests.ansible.programs import module
from tests.ansible.rendering import render, render_value
from tests.ansible.test_problems import SEEN
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

firewall = module("firewall", "firewall")
WANTED: dict[str, Any] = {
    "kind": "nftables",
    "zones": ["public"],
    "rules": [
        {"addresses": ["10.0.0.1", "10.0.0.9", "fd00::1"], "protocol": "tcp", "ports": ["22"]},
        {"addresses": ["10.0.0.1"], "protocol": "tcp", "ports": ["20000-31999", "32768-60999"]},
    ],
}


def chain(family: str, name: str, *rules: dict[str, Any], **more: object) -> list[dict[str, Any]]:
    """A chain as nft writes it in JSON, and its rules."""
    place = {"family": family, "table": "filter"}
    found: list[dict[str, Any]] = [{"chain": place | {"name": name, "handle": 1} | more}]
    return found + [{"rule": place | {"chain": name} | rule} for rule in rules]


INPUT: dict[str, Any] = {"type": "filter", "hook": "input", "prio": 0}
REJECT = {"handle": 9, "expr": [{"counter": {"packets": 0, "bytes": 0}}, {"reject": None}]}
ACCEPT = {"handle": 8, "expr": [{"match": {"op": "==", "left": {}, "right": 22}}, {"accept": None}]}
JUMP = {"handle": 5, "comment": "before", "expr": [{"jump": {"target": "muster"}}]}
SOME = {"handle": 7, "expr": [{"match": {"op": "==", "left": {}, "right": 22}}, {"drop": None}]}


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        (chain("inet", "input", ACCEPT, **INPUT, policy="drop"), ["input"]),
        (chain("inet", "input", ACCEPT, REJECT, **INPUT, policy="accept"), ["input"]),
        (chain("inet", "input", REJECT, ACCEPT, **INPUT, policy="accept"), ["input"]),
        (chain("inet", "input", JUMP, ACCEPT, **INPUT, policy="accept"), ["input"]),
        (chain("inet", "input", ACCEPT, SOME, **INPUT, policy="accept"), []),
        (chain("inet", "input", ACCEPT, **INPUT, policy="accept"), []),
        (chain("inet", "forward", **(INPUT | {"hook": "forward"}), policy="drop"), []),
        (chain("bridge", "input", **INPUT, policy="drop"), []),
        (chain("ip", "named-input", REJECT), []),
    ],
    ids=["policy", "last rule", "a rule", "our jump", "one port", "open", "forward", "bridge", "no hook"],
)
def test_a_chain_is_known_by_its_refusal_and_jump(entries: list[dict[str, Any]], names: list[str]) -> None:
    assert [found.name for found in firewall.nft_chains({"nftables": entries})] == names


def test_each_table_gets_one_chain_with_the_addresses_that_it_sees() -> None:
    chains = [firewall.Chain(family, "filter", "input", None, "") for family in ("ip", "inet")]
    mark = firewall.digest(WANTED)
    assert firewall.nft_script(WANTED, chains).splitlines() == [
        "add chain ip filter muster",
        "flush chain ip filter muster",
        "add rule ip filter muster ip saddr { 10.0.0.1, 10.0.0.9 } tcp dport { 22 } accept",
        "add rule ip filter muster ip saddr { 10.0.0.1 } tcp dport { 20000-31999, 32768-60999 } accept",
        "add chain inet filter muster",
        "flush chain inet filter muster",
        "add rule inet filter muster ip saddr { 10.0.0.1, 10.0.0.9 } tcp dport { 22 } accept",
        "add rule inet filter muster ip6 saddr { fd00::1 } tcp dport { 22 } accept",
        "add rule inet filter muster ip saddr { 10.0.0.1 } tcp dport { 20000-31999, 32768-60999 } accept",
        f'insert rule ip filter input jump muster comment "{mark}"',
        f'insert rule inet filter input jump muster comment "{mark}"',
    ]


def test_a_second_run_replaces_the_jump_and_a_removal_takes_it_back() -> None:
    entries = chain("inet", "input", JUMP, ACCEPT, **INPUT, policy="drop")
    chains = firewall.nft_chains({"nftables": entries})
    assert [(found.handle, found.mark) for found in chains] == [(5, "before")]
    assert "delete rule inet filter input handle 5" in firewall.nft_script(WANTED, chains).splitlines()
    assert firewall.nft_removal(chains).splitlines() == [
        "delete rule inet filter input handle 5",
        "flush chain inet filter muster",
        "delete chain inet filter muster",
    ]


def test_addresses_and_ports_that_overlap_are_said_once() -> None:
    rule = {
        "addresses": ["10.0.0.1", "10.0.0.0/24", "192.0.2.7", "fd00::1"],
        "ports": ["20000-31999", "1024-65535", "22"],
    }
    (found,) = firewall.plain({"rules": [rule]})["rules"]
    assert found == {"addresses": ["10.0.0.0/24", "192.0.2.7", "fd00::1"], "ports": ["22", "1024-65535"]}


@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        (
            "ufw",
            "ufw prepend allow proto tcp from 10.0.0.1 to any port 22 comment Muster",
            "ufw prepend allow proto tcp from 10.0.0.1 to any port 20000:31999,32768:60999 comment Muster",
        ),
        ("iptables", "iptables -N MUSTER", "ip6tables -I INPUT -j MUSTER"),
    ],
)
def test_other_firewalls_get_a_command_for_each_rule(kind: str, first: str, last: str) -> None:
    commands = [" ".join(argv) for argv in firewall.commands(WANTED | {"kind": kind})]
    assert (commands[0], commands[-1]) == (first, last)


def test_what_iptables_lets_in_is_in_the_chain_of_its_family() -> None:
    commands = [" ".join(argv) for argv in firewall.commands(WANTED | {"kind": "iptables"})]
    ports = "-m multiport --dports 20000:31999,32768:60999 -j ACCEPT"
    assert f"iptables -A MUSTER -s 10.0.0.1 -p tcp {ports}" in commands
    assert "ip6tables -A MUSTER -s fd00::1 -p tcp -m multiport --dports 22 -j ACCEPT" in commands


def test_firewalld_is_told_for_now_and_for_later() -> None:
    now, later = firewall.commands(WANTED | {"kind": "firewalld"})
    assert now[:3] == ("firewall-cmd", "--quiet", "--zone=public")
    assert later == ("firewall-cmd", "--quiet", "--permanent", *now[2:])
    rule = 'rule family="ipv6" source address="fd00::1" port port="22" protocol="tcp" accept'
    assert f"--add-rich-rule={rule}" in now
    removal, _ = firewall.commands(WANTED | {"kind": "firewalld"}, removal=True)
    assert f"--remove-rich-rule={rule}" in removal


KNOWN = {f"node{n}": {"addresses": [f"10.0.0.{n}", "db8::1%eth0"]} for n in (1, 2)}


@pytest.mark.parametrize(
    ("host", "variables", "ssh", "others"),
    [
        ("node2", {}, "2200", ["tcp 20000-31999,1000-2000"]),
        ("node1", {}, "2200", ["tcp 20000-31999,1000-2000", "udp 123"]),
        ("node2", {"muster_stack": "node"}, "2222", ["tcp 20000-31999,1000-2000"]),
    ],
    ids=["a worker", "the head", "node containers"],
)
def test_only_own_addresses_pass(host: str, variables: dict[str, Any], ssh: str, others: list[str]) -> None:
    seen = SEEN | {
        "firewalls": ["nftables", "ufw"],
        "operator": {"client": "192.0.2.9", "port": "2200"},
        "local_ports": ["1000", "2000"],
    }
    given = {"muster_seen": seen, "muster_known": KNOWN, "inventory_hostname": host} | variables
    wanted = render_value("firewall", "firewall_wanted", KNOWN, **given)
    assert wanted["kind"] == "ufw"  # it writes nftables' rules
    first, *rest = wanted["rules"]
    assert first == {"addresses": ["10.0.0.1", "10.0.0.2", "192.0.2.9"], "protocol": "tcp", "ports": [ssh]}
    assert [f"{rule['protocol']} {','.join(rule['ports'])}" for rule in rest] == others
    assert all(rule["addresses"] == ["10.0.0.1", "10.0.0.2"] for rule in rest)


def test_verify_names_why_the_rules_would_not_return() -> None:
    unit = "/etc/systemd/system/muster-firewall.service"
    written = {
        "/var/lib/muster/firewall.py": (BOOKS / "roles/firewall/files/firewall.py").read_text(),
        unit: render("firewall", "muster-firewall.service.j2", KNOWN),
    }
    files = {
        path: f"0 0644 {hashlib.sha256(content.encode()).hexdigest()}" for path, content in written.items()
    }

    def problems(enabled: bool, files: dict[str, str]) -> Any:
        seen = {"files": files, "units": {"muster-firewall": {"enabled": enabled}}}
        return render_value("firewall", "firewall_problems", KNOWN, muster_seen=seen)

    assert problems(True, files) == []
    assert problems(False, files | {unit: ""}) == [f"{unit} was changed", "muster-firewall is not enabled"]


def test_iptables_own_tables_are_left_to_iptables() -> None:
    """nft lists them too, but iptables cannot read what nft writes there: rules with a set of addresses."""
    seen = SEEN | {"firewalls": ["nftables", "iptables"]}
    assert (
        render_value("firewall", "firewall_kind", KNOWN, muster_seen=seen, muster_known=KNOWN) == "iptables"
    )


# -- two hosts, one of them with a firewall --

RULES = """#!/usr/sbin/nft -f
flush ruleset
table inet filter {
  chain input {
    type filter hook input priority filter; policy drop;
    ct state established,related accept
    iif lo accept
    ip saddr OPERATOR tcp dport 22 accept
  }
}
""".replace("OPERATOR", f"{NETWORK}.1")
# With the rules of before go those of the container engine too, which lead to its name server.
NAMES = "".join(f"{ADDRESSES[name]} {name}\n" for name in ("node5", "node6"))
PREPARE = f"""
cat >>/etc/hosts <<'END'
{NAMES}END
apt-get install --yes --no-install-recommends nftables >/dev/null
cat >/etc/nftables.conf <<'END'
{RULES}END
systemctl enable --now nftables
systemd-run --quiet --unit listen-jobs python3 -m http.server 20001 --directory /run
systemd-run --quiet --unit listen-other python3 -m http.server 8080 --directory /run
"""
REACHED = "import socket; socket.create_connection(('{}', {}), timeout=3)"


def test_nft_reads_what_it_is_told() -> None:
    """In a network of its own, where nft and the kernel let us have one; the hosts below prove it anyway."""
    as_root = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    place = ("unshare", *as_root, "--net", "nft")
    try:
        there = run(*place, "list", "ruleset")
    except OSError:
        there = None
    if there is None or there.returncode:
        pytest.skip("no nft here")
    chains = [firewall.Chain("inet", "filter", "input", None, "")]
    done = run(*place, "--check", "--file", "-", stdin=RULES + firewall.nft_script(WANTED, chains))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def guarded(operator: Path, clock: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """A cluster of two, of which one has a firewall; `clock` is a stranger to it."""
    hosts = Hosts(tmp_path_factory.mktemp("guarded"), ["node5", "node6"])
    for name in ("operator", "operator.pub"):
        (hosts.folder / name).symlink_to(operator / name)
    hosts.start("node5", "node6")
    hosts.on("node6", "sh", "-ec", PREPARE)
    listens = "ss -ltn | grep -q :20001 && ss -ltn | grep -q :8080 && echo yes"
    wait_until(lambda: hosts.on("node6", "sh", "-c", listens), "two listeners")
    yield hosts
    hosts.compose("rm", "--force", "--stop", "--volumes", "node6")


def reaches(hosts: Hosts, name: str, port: int) -> bool:
    """Whether a host gets a connection to a port of the one with the firewall."""
    command = f"{REACHED.format(ADDRESSES['node6'], port)}; print('in')"
    return hosts.on(name, "python3", "-c", command) == "in\n"


def ruleset(hosts: Hosts) -> str:
    return hosts.on("node6", "nft", "--stateless", "list", "ruleset")


PARTS = ("--tags", "firewall")


@pytest.mark.soak
def test_setup_lets_the_cluster_in_and_nobody_else_and_teardown_takes_it_back(guarded: Hosts) -> None:
    before, traces = ruleset(guarded), guarded.traces("node6")
    assert "policy drop" in before
    assert not reaches(guarded, "node5", 20001)
    done = guarded.play("setup", *PARTS, firewall_manage=False)
    assert (done.status, ruleset(guarded)) == (0, before), done.text
    assert "TCP 20000-31999" in done.text
    done = guarded.play("setup", *PARTS, "--check")
    assert (done.status, ruleset(guarded)) == (0, before), done.text
    done = guarded.play("setup", *PARTS)
    assert done.status == 0, done.text
    assert reaches(guarded, "node5", 20001)
    assert not reaches(guarded, "node5", 8080)
    assert not reaches(guarded, "clock", 20001)
    done = guarded.play("setup", *PARTS)
    assert (done.status, done.changed) == (0, 0), done.text
    guarded.on("node6", "systemctl", "restart", "nftables")
    wait_until(lambda: "jump muster" in ruleset(guarded), "the rules after nftables's own start")
    guarded.on("node6", "systemctl", "reload", "nftables")
    wait_until(lambda: "jump muster" in ruleset(guarded), "the rules after a reload")
    assert reaches(guarded, "node5", 20001)
    done = guarded.play("verify", verify_roles=["firewall"])
    assert done.status == 0, done.text
    done = guarded.play("teardown")
    assert (done.status, ruleset(guarded)) == (0, before), done.text
    after = guarded.traces("node6")
    assert (traces - after, after - traces) == (set(), set())


# As Oracle's images of Ubuntu have it: the policy accepts, and the last rule turns away who comes so far.
IPTABLES = f"""
systemctl disable --now nftables
apt-get install --yes --no-install-recommends iptables >/dev/null
iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
iptables -A INPUT -i lo -j ACCEPT
iptables -A INPUT -s {NETWORK}.1 -p tcp --dport 22 -j ACCEPT
iptables -A INPUT -j REJECT --reject-with icmp-host-prohibited
"""


@pytest.mark.soak
def test_an_iptables_whose_last_rule_rejects_lets_the_cluster_in_before_it(guarded: Hosts) -> None:
    guarded.on("node6", "sh", "-ec", IPTABLES)
    before, traces = guarded.on("node6", "iptables", "-S"), guarded.traces("node6")
    assert not reaches(guarded, "node5", 20001)
    assert guarded.play("setup", *PARTS).status == 0
    assert [reaches(guarded, "node5", port) for port in (20001, 8080)] == [True, False]
    done = guarded.play("setup", *PARTS)
    assert (done.status, done.changed) == (0, 0), done.text
    done = guarded.play("teardown")
    assert (done.status, guarded.on("node6", "iptables", "-S")) == (0, before), done.text
    after = guarded.traces("node6")
    assert (traces - after, after - traces) == (set(), set())
