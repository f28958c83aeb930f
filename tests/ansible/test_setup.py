"""Bare hosts become a cluster: previewed, set up, verified, and launched on."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.ansible.bare_hosts import ADDRESSES, HAS_TORCH, LOCKED_OUT, NETWORK, ROOT, run
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ansible.bare_hosts import Hosts, Outcome

RANKS = """
import os
from mpi4py import MPI

print("sum", MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.Get_rank()), "on", os.uname().nodename)
"""
SSHD = "/etc/ssh/sshd_config.d/10-muster.conf"
CHRONY = "/etc/chrony/muster.conf"
KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"
KEY = "/etc/muster/ssh/id_ed25519"
# What each edit of the test of drift has setup change, and what it may do about what was running then.
PUT_RIGHT = {
    "ssh_trust : Take the cluster's key from a host that needs none",
    "ssh_trust : Pin the host keys of all hosts",
    "ssh_trust : Write sshd's drop-in",
    "time_sync : Write chrony's configuration",
    "time_sync : Restart chrony",
}
BROUGHT_IN = {
    "ssh_trust : Notice an sshd whose drop-in was not read or not proven",
    "ssh_trust : Try sshd's drop-in",
    "ssh_trust : Reload sshd",
    "time_sync : Notice a chrony that is not running with its files",
}
# What a setup costs is each task on each host, the login of a launch among them. Some are done once for all,
# on the first host, which also logs in to the others.
TASKS, TASKS_OF_ALL = 5, 5
CHECKS = {
    *("ssh_trust.server", "ssh_trust.pairs", "ssh_trust.unknown_host_key", "ssh_trust.wrong_key"),
    *("ssh_trust.password", "ssh_trust.driver", "ssh_trust.finished", "ssh_trust.files", "ssh_trust.account"),
    *("time_sync.files", "time_sync.service", "time_sync.synchronised", "time_sync.spread"),
    *("time_sync.alone", "ssh_trust.limits", "bare.packages", "bare.stack", "leases.folder"),
}


# Before


@pytest.mark.soak  # test_wheel_setup.py has the same of one host
def test_a_check_of_bare_hosts_changes_nothing(hosts: Hosts, bare: dict[str, set[str]]) -> None:
    done = hosts.play("setup", "--check", "--diff")
    assert done.status == 0, done.text
    assert "+    MaxSessions 64" in done.text
    assert not hosts.muster.exists()
    assert {name: hosts.traces(name) for name in hosts.names} == bare


@pytest.mark.soak
def test_a_check_for_node_containers_works_on_bare_hosts_too(hosts: Hosts) -> None:
    done = hosts.play("setup", "--check", "--diff", "--limit", "node1", muster_stack="node")
    assert done.status == 0, done.text
    assert "+ExecStart=/usr/bin/docker run --rm --name muster-node" in done.text


# Setting up


def test_setup(hosts: Hosts, set_up: Outcome) -> None:
    assert "clocks agree within" in set_up.text
    assert set_up.changed > 10 * len(hosts.names)


@pytest.mark.soak
@pytest.mark.usefixtures("set_up")
def test_a_check_of_a_host_that_is_set_up_finds_nothing_to_do(hosts: Hosts) -> None:
    done = hosts.play("setup", "--check", "--diff", "--limit", hosts.names[-1])
    assert (done.status, done.changed) == (0, 0), done.text


def test_a_second_setup_changes_nothing_and_costs_little(hosts: Hosts, set_up: Outcome) -> None:
    """Of this machine's processor: a quarter of what the first one took, where nothing else runs."""
    done = hosts.play("setup")
    assert (done.status, done.changed) == (0, 0), done.text
    assert [done.recap[name]["ok"] for name in hosts.names] == [
        TASKS + TASKS_OF_ALL,
        *[TASKS] * (len(hosts.names) - 1),
    ], done.text
    assert done.cpu_seconds < 0.6 * set_up.cpu_seconds


# Hosts that were not edited are left alone: the setup above has changed nothing on any of them.
@pytest.mark.soak
@pytest.mark.usefixtures("set_up")
def test_what_was_edited_by_hand_is_put_right_with_no_host_left_out_of_the_known_ones(hosts: Hosts) -> None:
    edits = f"echo 'MaxStartups 1' >{SSHD}; echo 'server 192.0.2.1' >{CHRONY}; systemctl stop chrony;"
    hosts.on("node2", "sh", "-c", edits + f"echo key >{KEY}; rm /etc/ssh/ssh_known_hosts")
    done = hosts.play("setup", "--limit", "node2")
    assert done.status == 0, done.text
    assert PUT_RIGHT <= set(done.changes("node2")) <= PUT_RIGHT | BROUGHT_IN
    here, there = (hosts.muster / "known_hosts").read_text(), hosts.on("node2", "cat", KNOWN_HOSTS)
    assert [name for name in hosts.names if name not in here or name not in there] == []


# After the edits: so it also proves that they are put right.
@pytest.mark.usefixtures("set_up")
def test_verify_finds_all_as_it_should_be_and_says_so_as_json(hosts: Hosts) -> None:
    done = hosts.play("verify")
    assert done.status == 0, done.text
    found = hosts.checks()
    assert sorted((str(check["host"]), str(check["id"])) for check in found) == sorted(
        (name, check) for name in hosts.names for check in CHECKS
    )


def launch(hosts: Hosts, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "fabric", "--search-root", str(ROOT), "launch")
    hosts_file = () if "--hosts" in words else ("--hosts", str(hosts.hosts_file))
    return run(*command, *hosts_file, *words, timeout=600, cwd=folder)


@pytest.mark.usefixtures("set_up")
def test_the_hosts_of_a_setup_run_a_launch_with_no_further_step(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    done = launch(hosts, tmp_path, "--script", "ranks.py")
    assert done.returncode == 0, done.stdout + done.stderr
    total = sum(range(2 * len(hosts.names)))
    assert [name for name in hosts.names if done.stdout.count(f"sum {total} on {name}") < 2] == []


@pytest.mark.soak
@pytest.mark.skipif(not HAS_TORCH, reason="these hosts have no PyTorch")
@pytest.mark.usefixtures("set_up")
def test_the_hosts_of_a_setup_train_with_no_further_step(hosts: Hosts, tmp_path: Path) -> None:
    one_each = hosts.folder / "one-each.txt"  # a rank on each host: each spends seconds to import torch
    one_each.write_text("".join(f"{name} slots=1\n" for name in hosts.names))
    words = ("--hosts", str(one_each), "--runs", str(tmp_path), "--args=--epochs 1 --limit 64")
    done = launch(hosts, ROOT, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    number = len(hosts.names)
    summary = rf"accuracy=0\.\d+ ranks={number} hosts={number} backend=gloo launcher=mpirun seconds=\S+"
    assert re.fullmatch(summary, done.stdout.splitlines()[-1])


# Trust


@pytest.mark.usefixtures("set_up")
def test_a_key_of_ones_own_and_a_password_open_nothing(hosts: Hosts, tmp_path: Path) -> None:
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key"))
    common = ["-F", "none", "-o", f"UserKnownHostsFile={hosts.muster}/known_hosts", "-o", "BatchMode=yes"]
    target = f"muster@{ADDRESSES['node1']}"
    for options in (
        ["-o", "IdentitiesOnly=yes", "-i", str(tmp_path / "key")],
        ["-o", "PubkeyAuthentication=no"],
    ):
        done = run("ssh", *common, *options, target, "true")
        assert done.returncode == 255
        assert "Permission denied (publickey)" in done.stderr


@pytest.mark.usefixtures("set_up")
def test_an_unknown_host_key_and_another_hosts_are_refused(hosts: Hosts) -> None:
    for option, reason in (
        ("UserKnownHostsFile=/dev/null", "Host key verification failed"),
        (f"HostKeyAlias={hosts.names[-1]}", "REMOTE HOST IDENTIFICATION HAS CHANGED"),
    ):
        done = hosts.driver("node1", "true", "-o", option)
        assert done.returncode == 255
        assert reason in done.stderr


def log_in(hosts: Hosts, name: str, target: str, *options: str) -> str:
    """What a login from host to host, as the jobs' account, prints."""
    return hosts.on(name, "runuser", "-u", "muster", "--", "ssh", "-n", *options, target, "echo in")


@pytest.mark.usefixtures("set_up")
def test_a_host_opens_no_others_door_but_for_the_first(hosts: Hosts) -> None:
    first, second, *_ = hosts.names
    assert log_in(hosts, first, second) == log_in(hosts, first, first) == "in\n"
    assert "id_ed25519" not in hosts.on(second, "ls", "/etc/muster/ssh")
    assert log_in(hosts, second, first) == ""
    stolen = hosts.on(first, "cat", KEY)
    keep = f"umask 077; cat >/tmp/stolen <<'END'\n{stolen}END\nchown muster /tmp/stolen"
    hosts.on(second, "sh", "-c", keep)
    try:
        assert log_in(hosts, second, first, "-i", "/tmp/stolen") == ""
    finally:
        hosts.on(second, "rm", "/tmp/stolen")


@pytest.mark.usefixtures("set_up")
def test_the_clusters_key_is_good_from_the_head_and_here_and_forwards_nothing(hosts: Hosts) -> None:
    line = hosts.on("node1", "cat", "/etc/muster/ssh/authorized_keys").splitlines()[-1]
    addresses = [ADDRESSES["node1"], f"{NETWORK}.1"]  # the last is this machine's
    assert line.startswith(f'from="{",".join(addresses)}",restrict,pty ssh-ed25519 ')


@pytest.mark.usefixtures("set_up")
def test_an_sshd_that_would_keep_the_operator_out_is_taken_back(hosts: Hosts) -> None:
    before = hosts.on("node2", "cat", SSHD)
    done = hosts.play("setup", "--tags", "ssh_trust", "--limit", "node2", **LOCKED_OUT)
    assert done.status != 0
    assert "node2: with Muster's drop-in sshd does not let you in again" in done.text
    assert hosts.operator("node2", "echo in").stdout == "in\n"
    assert "MaxSessions" in before
    assert hosts.on("node2", "cat", SSHD) == before  # and so the cluster's key is still good there
    assert hosts.driver("node2", "echo in").stdout == "in\n"


@pytest.mark.soak
@pytest.mark.usefixtures("set_up")
def test_an_sshd_that_would_keep_the_first_host_out_is_taken_back_too(hosts: Hosts) -> None:
    before = hosts.on("node2", "cat", SSHD)
    with_rule(hosts, "node2", f"AllowUsers op root muster@{NETWORK}.1")  # this machine's address
    try:
        done = hosts.play("setup", "--tags", "ssh_trust", ssh_trust_max_sessions=65)
    finally:
        with_rule(hosts, "node2", "")
    assert done.status != 0
    assert "node1: cannot log in to node2 as muster: " in done.text
    assert "node2: its sshd has its earlier settings again" in done.text
    assert hosts.on("node2", "cat", SSHD) == before
    assert hosts.play("setup", "--tags", "ssh_trust").status == 0


@pytest.mark.usefixtures("set_up")
def test_a_setup_that_changes_nothing_fails_too_where_a_launch_cannot_log_in(hosts: Hosts) -> None:
    with_rule(hosts, "node2", "AllowUsers op root muster@192.0.2.1")
    try:
        done = hosts.play("setup", "--tags", "ssh_trust")
    finally:
        with_rule(hosts, "node2", "")
    assert done.status != 0
    assert "node2: sshd there says: User muster from" in done.text
    assert "node2: do: add muster, the account that jobs run as, to AllowUsers" in done.text
    # The driver can log in to the first host; its detached jobs report the second one themselves.
    assert "node1: a launch cannot" not in done.text


def with_rule(hosts: Hosts, name: str, rule: str) -> None:
    """Have a host's sshd follow a line of its owner's, in a file of its own; none if it is empty."""
    file = "/etc/ssh/sshd_config.d/60-site.conf"
    hosts.on(name, "sh", "-c", f"echo '{rule}' >{file}; [ '{rule}' ] || rm {file}; systemctl reload ssh")
    wait_until(lambda: hosts.is_in(name), f"a login at {name}")
