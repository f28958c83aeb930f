"""The whole life of a cluster of bare hosts, in this order: each test finds what the one before it left."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tests.ansible.conftest import ADDRESSES, BOOKS, PATH, ROOT, run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ansible.conftest import Hosts

RANKS = """
import os
from mpi4py import MPI

print("sum", MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.Get_rank()), "on", os.uname().nodename)
"""
SSHD = "/etc/ssh/sshd_config.d/10-muster.conf"
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
CHRONY = "/etc/chrony/muster.conf"


@pytest.fixture(scope="module")
def bare(hosts: Hosts) -> dict[str, set[str]]:
    """The traces of the hosts before anything was done to them."""
    return {name: hosts.traces(name) for name in hosts.names}


def checks(hosts: Hosts) -> list[dict[str, object]]:
    report = json.loads((hosts.muster / "verify.json").read_text())
    assert report["ok"] is all(check["ok"] for check in report["checks"])
    return list(report["checks"])


# Before


@pytest.mark.parametrize("book", ["setup", "verify", "rotate-keys", "teardown"])
def test_syntax(hosts: Hosts, book: str) -> None:
    assert hosts.play(book, "--syntax-check").status == 0


def test_lint() -> None:
    done = run(
        *(sys.executable, "-m", "ansiblelint", "--offline", "--nocolor", "--profile", "production"),
        timeout=120,
        cwd=BOOKS,
        env={"PATH": PATH},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_check_of_bare_hosts_shows_what_would_happen_and_changes_nothing(
    hosts: Hosts, bare: dict[str, set[str]]
) -> None:
    done = hosts.play("setup", "--check", "--diff")
    assert done.status == 0, done.text
    assert "+MaxStartups 64:30:256" in done.text
    assert not hosts.muster.exists()
    assert {name: hosts.traces(name) for name in hosts.names} == bare


def test_a_check_for_node_containers_works_on_bare_hosts_too(hosts: Hosts) -> None:
    done = hosts.play("setup", "--check", "--diff", muster_stack="node")
    assert done.status == 0, done.text
    assert "+ExecStart=/usr/bin/docker run --rm --name muster-node" in done.text


# Setting up


def test_setup(hosts: Hosts, bare: dict[str, set[str]]) -> None:
    done = hosts.play("setup")
    assert done.status == 0, done.text
    assert "clocks agree within" in done.text


def test_a_check_of_set_up_hosts_finds_nothing_to_do(hosts: Hosts) -> None:
    done = hosts.play("setup", "--check", "--diff")
    assert (done.status, done.changed) == (0, 0), done.text


def test_a_second_setup_changes_nothing_and_costs_little(hosts: Hosts) -> None:
    done = hosts.play("setup")
    assert (done.status, done.changed) == (0, 0), done.text
    # 6 s for three hosts: of this machine's CPUs, for it has them and more to do. Each task costs about 0.3.
    assert done.cpu_seconds < 12


def test_verify_finds_all_as_it_should_be_and_says_so_as_json(hosts: Hosts) -> None:
    done = hosts.play("verify")
    assert done.status == 0, done.text
    assert {check["host"] for check in checks(hosts)} == set(hosts.names)
    assert {check["id"] for check in checks(hosts)} == {
        *("ssh_trust.server", "ssh_trust.pairs", "ssh_trust.unknown_host_key", "ssh_trust.wrong_key"),
        *("ssh_trust.password", "time_sync.synchronised", "time_sync.spread", "time_sync.alone"),
        *("limits.session", "bare.packages", "bare.stack"),
    }


def launch(hosts: Hosts, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "ranks.py").write_text(RANKS)
    return run(
        *(sys.executable, "-m", "fabric", "--search-root", str(ROOT)),
        *("launch", "--hosts", str(hosts.hosts_file), "--script", "ranks.py"),
        timeout=120,
        cwd=tmp_path,
    )


def test_the_hosts_of_a_setup_run_a_launch_with_no_further_step(hosts: Hosts, tmp_path: Path) -> None:
    done = launch(hosts, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [done.stdout.count(f"sum 15 on {name}") >= 2 for name in hosts.names] == [True] * 3


# Trust


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


def test_an_unknown_host_key_and_another_hosts_are_refused(hosts: Hosts) -> None:
    for option, reason in (
        ("UserKnownHostsFile=/dev/null", "Host key verification failed"),
        ("HostKeyAlias=node3", "REMOTE HOST IDENTIFICATION HAS CHANGED"),
    ):
        done = hosts.driver("node1", "true", "-o", option)
        assert done.returncode == 255
        assert reason in done.stderr


def test_the_clusters_key_is_good_from_the_cluster_only_and_forwards_nothing(hosts: Hosts) -> None:
    line = hosts.on("node1", "cat", "/etc/muster/ssh/authorized_keys").splitlines()[-1]
    assert line.startswith('from="10.77.0.11,10.77.0.12,10.77.0.13,10.77.0.1",restrict ssh-ed25519 ')


def test_an_sshd_that_would_keep_the_operator_out_is_taken_back(hosts: Hosts) -> None:
    done = hosts.play("setup", "--tags", "ssh_trust", ssh_trust_allow_users=["nobody"])
    assert done.status != 0
    assert "node1: with Muster's drop-in sshd does not let you in again" in done.text
    assert [hosts.operator(name, "echo in").stdout for name in hosts.names] == ["in\n"] * 3


def test_an_auditor_finds_no_fault_in_sshd(hosts: Hosts) -> None:
    assert hosts.play("setup", "--tags", "ssh_trust").status == 0
    # Its test of denial of service would be one.
    done = run(sys.executable, "-m", "ssh_audit", "--json", "--skip-rate-test", ADDRESSES["node1"])
    report = json.loads(done.stdout)
    found = [item for kind in ("kex", "key", "mac", "enc") for item in report[kind]]
    assert len(found) > 10
    assert [item["algorithm"] for item in found if item.get("notes", {}).get("fail")] == []


# Drift, and clocks


def test_what_was_edited_by_hand_is_put_right(hosts: Hosts) -> None:
    edits = f"echo 'MaxStartups 1' >{SSHD}; echo 'server 192.0.2.1' >{CHRONY}; systemctl stop chrony;"
    hosts.on("node2", "sh", "-c", edits + "chmod 644 /etc/muster/ssh/id_ed25519; rm /etc/ssh/ssh_known_hosts")
    done = hosts.play("setup")
    assert done.status == 0, done.text
    assert {name: host["changed"] for name, host in done.recap.items() if name != "localhost"} == {
        "node1": 0,
        "node2": pytest.approx(7, abs=2),
        "node3": 0,
    }
    assert hosts.play("verify").status == 0


def test_a_clock_that_is_wrong_is_named_with_its_figure(hosts: Hosts) -> None:
    folder = "/run/systemd/system/chrony.service.d"
    fake = f"LD_PRELOAD={FAKETIME} FAKETIME=+1.25s FAKETIME_DONT_FAKE_MONOTONIC=1"
    unit = f"mkdir -p {folder}; printf '[Service]\\nEnvironment={fake}\\n' >{folder}/fake.conf;"
    unit += "systemctl daemon-reload;"
    hosts.on("node3", "sh", "-c", unit + "systemctl restart chrony")
    try:
        done = hosts.play("setup", "--tags", "time_sync", time_sync_wait_seconds=5)
    finally:
        hosts.on("node3", "sh", "-c", f"rm -r {folder}; systemctl daemon-reload; systemctl restart chrony")
    assert done.status != 0
    assert "node3: its clock is +1.2" in done.text
    assert "s from 10.77.0.11; the clocks of the cluster are 1.2" in done.text
    assert hosts.play("setup", "--tags", "time_sync").status == 0


# Some of the hosts, more hosts, and runs that are cut short


def test_a_limited_run_leaves_no_host_out_of_the_known_ones(hosts: Hosts) -> None:
    done = hosts.play("setup", "--limit", "node2")
    assert (done.status, done.changed) == (0, 0), done.text
    assert [name in (hosts.muster / "known_hosts").read_text() for name in hosts.names] == [True] * 3


TASKS = [
    "[ssh_trust : Make the account]",
    "[ssh_trust : Hand out the cluster's key]",
    "[ssh_trust : Write sshd's drop-in]",
    "[ssh_trust : Reload sshd]",
    "[packages : Write down what is new",
    "[packages : Install the packages]",
    "[time_sync : Restart chrony]",
]


def test_a_host_is_added_by_another_setup_even_if_that_is_interrupted_again_and_again(
    hosts: Hosts, bare: dict[str, set[str]]
) -> None:
    hosts.start("node4")
    bare["node4"] = hosts.traces("node4")
    hosts.names.append("node4")
    for task in TASKS:
        hosts.play_until(task, "setup")
    done = hosts.play("setup")
    assert done.status == 0, done.text
    assert hosts.play("setup").changed == 0
    done = hosts.play("verify")
    assert done.status == 0, done.text
    assert len(checks(hosts)) == 4 * 11


# Rotation


def test_a_new_key_takes_the_old_ones_place_with_no_moment_without_access(hosts: Hosts) -> None:
    old = (hosts.muster / "id_ed25519").read_text()
    logins: list[int] = []
    over = threading.Event()

    def keep_logging_in() -> None:
        while not over.is_set():
            logins.append(hosts.driver("node2", "ssh node3 true").returncode)

    thread = threading.Thread(target=keep_logging_in)
    thread.start()
    done = hosts.play("rotate-keys")
    over.set()
    thread.join()
    assert done.status == 0, done.text
    assert len(logins) > 5
    # A login that is under way while the key is replaced may read half of each and fail, the next may not.
    assert not any(first and second for first, second in pairwise(logins)), logins
    assert logins[-1] == 0
    assert (hosts.muster / "id_ed25519").read_text() != old
    (hosts.folder / "old").write_text(old)
    (hosts.folder / "old").chmod(0o600)
    known = f"UserKnownHostsFile={hosts.muster}/known_hosts"
    done_old = run(
        *("ssh", "-F", "none", "-o", known, "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
        *("-i", str(hosts.folder / "old"), f"muster@{ADDRESSES['node1']}", "true"),
    )
    assert "Permission denied (publickey)" in done_old.stderr
    assert hosts.play("verify").status == 0


@pytest.mark.parametrize(
    "marker", ["[ssh_trust : Hand out the next key]", "[ssh_trust : Let only the new key in]"]
)
def test_a_rotation_that_is_interrupted_keeps_everyone_in_and_goes_on(hosts: Hosts, marker: str) -> None:
    hosts.play_until(marker, "rotate-keys")
    assert [hosts.driver(name, "ssh node1 true").returncode for name in hosts.names] == [0] * 4
    assert hosts.play("setup", "--tags", "ssh_trust").status == 0
    assert [hosts.driver(name, "ssh node1 true").returncode for name in hosts.names] == [0] * 4
    done = hosts.play("rotate-keys")
    assert done.status == 0, done.text
    assert [hosts.driver(name, "ssh node1 true").returncode for name in hosts.names] == [0] * 4


def test_a_rotation_of_some_hosts_is_refused(hosts: Hosts) -> None:
    done = hosts.play("rotate-keys", "--limit", "node1,node2")
    assert done.status != 0
    assert "a key is rotated on all hosts at once" in done.text


# The end


def test_teardown_leaves_no_trace(hosts: Hosts, bare: dict[str, set[str]]) -> None:
    done = hosts.play("teardown")
    assert done.status == 0, done.text
    assert {name: (bare[name] - after, after - bare[name]) for name, after in traces(hosts).items()} == {
        name: (set(), set()) for name in hosts.names
    }
    assert not hosts.muster.exists()


def traces(hosts: Hosts) -> dict[str, set[str]]:
    return {name: hosts.traces(name) for name in hosts.names}


def test_verify_proves_that_nothing_is_left(hosts: Hosts, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = hosts.play("verify", verify_state="absent", verify_json=str(report))
    assert done.status == 0, done.text
    outcome = json.loads(report.read_text())
    assert (outcome["ok"], outcome["state"], len(outcome["checks"])) == (True, "absent", 4 * len(hosts.names))
    assert hosts.play("verify").status != 0


def test_a_second_teardown_has_nothing_to_do(hosts: Hosts) -> None:
    done = hosts.play("teardown")
    assert (done.status, done.changed) == (0, 0), done.text
