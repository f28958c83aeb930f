"""Setup is killed at one moment after another, each time on a new host, and simply run again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ansible.bare_hosts import wait_for

if TYPE_CHECKING:
    from tests.ansible.bare_hosts import Hosts

SSHD = "/etc/ssh/sshd_config.d/10-muster.conf"
UNDO = "muster-undo-sshd.timer"
MOMENTS = [
    ("ssh_trust", "[ssh_trust : Make the account]"),
    ("ssh_trust", "[ssh_trust : Hand out the cluster's key]"),
    ("ssh_trust", "[ssh_trust : Try sshd's drop-in]"),
    ("ssh_trust", "[ssh_trust : Open a second connection]"),
    ("ssh_trust", "[ssh_trust : Write the driver's side]"),
    ("time_sync", "[packages : Install the packages]"),
    ("time_sync", "[time_sync : Restart chrony]"),
]


def waits(hosts: Hosts) -> bool:
    """Whether the host is about to take sshd's drop-in back."""
    return hosts.on("node5", "systemctl", "is-active", UNDO) == "active\n"


@pytest.mark.parametrize(("role", "task"), MOMENTS, ids=[task for _, task in MOMENTS])
def test_a_setup_that_was_killed_is_simply_run_again(fresh: Hosts, role: str, task: str) -> None:
    fresh.play_until(task, "setup", "--tags", role)
    assert fresh.operator("node5", "echo in").stdout == "in\n"
    done = fresh.play("setup", "--tags", role)
    assert done.status == 0, done.text
    done = fresh.play("verify", verify_roles=[role])
    assert done.status == 0, done.text
    assert not waits(fresh)


def test_an_sshd_that_keeps_the_operator_out_is_taken_back_even_if_ansible_dies_before_it_notices(
    fresh: Hosts,
) -> None:
    fresh.variables |= {"ssh_trust_allow_users": ["nobody"], "ssh_trust_undo_seconds": 5}
    fresh.play_until("[ssh_trust : Open a second connection]", "setup", "--tags", "ssh_trust")
    assert fresh.operator("node5", "true").returncode == 255
    assert wait_for(lambda: fresh.operator("node5", "echo in").stdout) == "in"
    assert not fresh.on("node5", "ls", SSHD)
    assert not waits(fresh)
    fresh.variables |= {"ssh_trust_allow_users": []}
    assert fresh.play("setup", "--tags", "ssh_trust").status == 0
    done = fresh.play("verify", verify_roles=["ssh_trust"])
    assert done.status == 0, done.text
