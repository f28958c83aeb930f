"""Hosts behind another one, without NTP, without lists of packages, and hosts that share their homes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ansible.bare_hosts import HAS_TORCH, Hosts, run
from tests.ansible.test_setup import RANKS, launch

if TYPE_CHECKING:
    from subprocess import CompletedProcess

pytestmark = [pytest.mark.soak, pytest.mark.skipif(not HAS_TORCH, reason="these hosts have no PyTorch")]

# The pool of the distribution leads nowhere, as without outbound NTP. apt has no list of packages, and gets
# one from the packages in its cache.
PREPARE = r"""
echo 127.0.0.1 2.debian.pool.ntp.org >>/etc/hosts
cd /var/cache/apt/archives
for file in *.deb; do
  dpkg-deb --field "$file"
  echo "Filename: ./$file"; echo "Size: $(stat --format %s "$file")"
  echo "SHA256: $(sha256sum "$file" | cut -d' ' -f1)"; echo
done >Packages
rm -rf /var/lib/apt/lists/* /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] copy:/var/cache/apt/archives ./' >/etc/apt/sources.list
"""


def made(folder: Path, operator: Path, *names: str) -> Hosts:
    hosts = Hosts(folder, [*names])
    for name in ("operator", "operator.pub"):
        (folder / name).symlink_to(operator / name)
    hosts.start(*names)
    return hosts


def muster(hosts: Hosts, *words: str) -> CompletedProcess[str]:
    hosts.command("setup")  # writes the hosts file
    return run(sys.executable, "-m", "muster", *words, "--hosts", str(hosts.hosts_file), env=hosts.env)


def no_trace(hosts: Hosts, before: dict[str, set[str]]) -> None:
    after = {name: hosts.traces(name) for name in before}
    found = {name: (before[name] - after[name], after[name] - before[name]) for name in before}
    assert found == {name: (set(), set()) for name in before}


@pytest.fixture(scope="module")
def hosts(operator: Path, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """Two hosts, the second behind the first: only the first knows its name."""
    hosts = made(tmp_path_factory.mktemp("odd"), operator, "node4", "node5")
    for name in hosts.names:
        hosts.on(name, "sh", "-ec", PREPARE)
        assert not hosts.on(name, "sh", "-c", "ls -A /var/lib/apt/lists")
        assert not hosts.on(name, "dpkg-query", "--show", "python3-apt")
    key = hosts.on("node5", "cat", "/etc/ssh/ssh_host_ed25519_key.pub")
    config = hosts.folder / "operator_config"
    first, _, _ = config.read_text().partition("Host node5")
    config.write_text(first)
    hosts.pin("node5", "node5", key)
    with config.open("a") as more:
        more.write("Host node5\n  ProxyJump node4\n")
    assert hosts.is_in("node5")
    hosts.variables |= {"time_sync_servers": [], "packages_index_seconds": 86400}
    return hosts


@pytest.fixture(scope="module")
def before(hosts: Hosts) -> dict[str, set[str]]:
    return {name: hosts.traces(name) for name in hosts.names}


def test_without_ntp_the_hosts_follow_the_first_one(hosts: Hosts, before: dict[str, set[str]]) -> None:
    assert before
    done = hosts.play("setup")
    assert done.status == 0, done.text
    said = " ".join(done.text.split())
    assert "no host reaches 2.debian.pool.ntp.org over NTP (UDP port 123), so the others follow" in said
    done = hosts.play("setup")
    assert (done.status, done.changed) == (0, 0), done.text


def test_servers_that_the_user_named_must_answer(hosts: Hosts) -> None:
    hosts.on("node5", "mv", "/etc/chrony/muster.conf", "/root/away")
    done = hosts.play("setup", time_sync_mode="public", time_sync_servers=["127.0.0.1"])
    hosts.on("node5", "mv", "/root/away", "/etc/chrony/muster.conf")
    assert (done.status, done.changed) == (2, 0), done.text
    said = " ".join(done.text.split())
    assert "too few of its time servers answer over NTP, UDP port 123 (127.0.0.1: no answer)" in said
    assert "have the hosts follow the clock of node4: -e time_sync_mode=head" in said


def test_a_host_behind_another_one_is_verified_checked_and_used(hosts: Hosts, tmp_path: Path) -> None:
    done = hosts.play("verify")
    assert done.status == 0, done.text
    checked = muster(hosts, "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (tmp_path / "ranks.py").write_text(RANKS)
    launched = launch(hosts, tmp_path, "--script", "ranks.py")
    assert launched.returncode == 0, launched.stdout + launched.stderr
    assert launched.stdout.count("sum 6 on node5") == 2


def test_a_host_that_leaves_is_cleaned_and_may_return(hosts: Hosts, before: dict[str, set[str]]) -> None:
    hosts.names = ["node4"]
    done = hosts.play("setup")
    assert done.status == 0, done.text
    assert "no longer in hosts.txt, and not cleaned: node5. Do: muster setup --remove node5" in done.text
    removed = muster(hosts, "setup", "--remove", "node5", "--ansible=-e teardown_remove_data=true")
    assert removed.returncode == 0, removed.stdout + removed.stderr
    no_trace(hosts, {"node5": before["node5"]})
    done = hosts.play("setup")
    assert (done.status, done.changed, "no longer in hosts.txt" in done.text) == (0, 0, False), done.text
    hosts.names = ["node4", "node5"]
    added = muster(hosts, "setup", "--limit", "node5")
    assert added.returncode == 0, added.stdout + added.stderr
    done = hosts.play("verify")
    assert done.status == 0, done.text


def test_teardown_removes_packages_that_setup_brought(hosts: Hosts, before: dict[str, set[str]]) -> None:
    done = hosts.play("teardown", teardown_remove_data=True)
    assert done.status == 0, done.text
    no_trace(hosts, before)
    assert not hosts.muster.exists()


def test_a_sudo_that_asks_for_a_password_is_named_with_the_option_for_it(hosts: Hosts) -> None:
    hosts.on("node4", "sh", "-c", "echo op:secret | chpasswd; echo 'op ALL=(ALL) ALL' >/etc/sudoers.d/op")
    config = hosts.folder / "operator_config"
    config.write_text(config.read_text().replace("User root", "User op"))
    for connection in (hosts.folder / "cp").iterdir():
        connection.unlink()  # it is root's
    hosts.names = ["node4"]
    done = hosts.play("setup")
    said = " ".join(done.text.split())
    assert "node4: sudo asks for a password there; give it once for all hosts" in said, done.text
    assert "muster setup -- --ask-become-pass" in said


@pytest.fixture(scope="module")
def sharing(operator: Path, clock: str, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """Two hosts with one /home; the second has another local account."""
    hosts = made(tmp_path_factory.mktemp("sharing"), operator, "node7", "node8")
    hosts.on("node8", "useradd", "--uid", "1001", "--no-create-home", "bob")
    return hosts


def test_on_hosts_that_share_homes_the_account_has_one_uid(sharing: Hosts) -> None:
    before = {name: sharing.traces(name) for name in sharing.names}
    done = sharing.play("setup", "--tags", "ssh_trust")
    assert done.status == 0, done.text
    assert {sharing.on(name, "id", "-u", "muster") for name in sharing.names} == {"1002\n"}
    for name in sharing.names:
        assert sharing.driver(name, f"touch ~/{name} && stat --format %U ~/{name}").stdout == "muster\n"
    done = sharing.play("setup", "--tags", "ssh_trust")
    assert (done.status, done.changed) == (0, 0), done.text
    done = sharing.play("teardown", teardown_remove_data=True)
    assert done.status == 0, done.text
    no_trace(sharing, before)


def test_a_home_of_another_uid_is_refused_before_any_change(sharing: Hosts) -> None:
    for name, uid in (("node7", "1002"), ("node8", "1003")):
        sharing.on(name, "useradd", "--uid", uid, "--create-home", "--comment", "Muster jobs", "muster")
    done = sharing.play("setup", "--tags", "ssh_trust")
    assert done.status == 2, done.text
    assert done.recap["node8"]["changed"] == 0, json.dumps(done.recap)
    said = " ".join(done.text.split())
    assert "node8: /home/muster belongs to UID 1002, and the account muster has UID 1003" in said
    assert "on this host: usermod --uid 1002 muster" in said
