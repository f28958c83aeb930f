"""Setup is killed at one moment after another; each run goes on from where the last one was cut short."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.ansible.bare_hosts import LOCKED_OUT
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.ansible.bare_hosts import Hosts

pytestmark = pytest.mark.soak

SSHD = "/etc/ssh/sshd_config.d/10-muster.conf"
UNDO = "muster-undo-sshd.timer"
TIMER, QUICK = "/usr/local/bin/systemd-run", ("#!/bin/sh", 'while [ "$1" != sh ]; do shift; done', '"$@"')
PARTS = ("--tags", "ssh_trust,time_sync")
# In the order of setup: a run that could not repeat what the last one left would not get to its own moment.
MOMENTS = (
    "[ssh_trust : Make the account]",
    "[ssh_trust : Hand out the cluster's key]",
    "[ssh_trust : Try sshd's drop-in]",
    "[ssh_trust : Open a second connection]",
    "[ssh_trust : Write the driver's side]",
    "[packages : Install the packages]",
    "[time_sync : Restart chrony]",
)


def waits(hosts: Hosts) -> bool:
    """Whether the host is about to take sshd's drop-in back."""
    return hosts.on("node5", "systemctl", "is-active", UNDO) == "active\n"


def test_a_setup_that_is_killed_again_and_again_is_simply_run_again(newcomer: Hosts) -> None:
    for moment in MOMENTS:
        newcomer.play_until(moment, "setup", *PARTS)
        assert newcomer.operator("node5", "echo in").stdout == "in\n", moment
    done = newcomer.play("setup", *PARTS)
    assert done.status == 0, done.text
    done = newcomer.play("verify", verify_roles=["ssh_trust", "time_sync"])
    assert done.status == 0, done.text
    assert not waits(newcomer)


def test_an_sshd_that_locks_the_operator_out_is_undone_though_ansible_died(newcomer: Hosts) -> None:
    before = newcomer.on("node5", "cat", SSHD)
    newcomer.variables |= LOCKED_OUT | {"ssh_trust_undo_seconds": 30}
    newcomer.play_until("[ssh_trust : Open a second connection]", "setup", *PARTS)
    assert "Permission denied" in newcomer.operator("node5", "true").stderr
    wait_until(lambda: newcomer.is_in("node5"), "the operator's way in", patience=200.0)
    assert newcomer.on("node5", "cat", SSHD) == before
    assert not waits(newcomer)
    newcomer.variables |= {"hardening_enabled": False}
    assert newcomer.play("setup", *PARTS).status == 0
    done = newcomer.play("verify", verify_roles=["ssh_trust"])
    assert done.status == 0, done.text


def test_an_sshd_whose_trial_a_restart_of_the_host_ended_is_tried_by_the_next_setup(newcomer: Hosts) -> None:
    newcomer.variables |= {"ssh_trust_max_sessions": 65}  # another drop-in
    newcomer.play_until("[ssh_trust : Open a second connection]", "setup", *PARTS)
    newcomer.on("node5", "systemctl", "stop", UNDO)  # a timer of systemd-run is gone after a restart
    done = newcomer.play("verify", verify_roles=["ssh_trust"])
    assert "muster setup was cut short: run it again" in done.text
    assert newcomer.play("setup", *PARTS).status == 0
    done = newcomer.play("verify", verify_roles=["ssh_trust"])
    assert done.status == 0, done.text
    assert not waits(newcomer)


def test_a_timer_that_was_faster_than_the_proof_is_told_and_what_was_there_stays(newcomer: Hosts) -> None:
    before = newcomer.on("node5", "cat", SSHD)
    # In place of a timer that ends between the change and the proof: one that takes no time.
    newcomer.on("node5", "sh", "-c", f"printf '%s\\n' \"$@\" > {TIMER}; chmod +x {TIMER}", "sh", *QUICK)
    newcomer.variables |= {"ssh_trust_max_sessions": 66, "ssh_trust_undo_seconds": 45}
    done = newcomer.play("setup", *PARTS)
    assert done.status != 0
    said = " ".join(done.text.split())
    assert "not proven within 45 s, so the host took it back. Run setup again" in said, done.text
    assert newcomer.on("node5", "cat", SSHD) == before
    newcomer.on("node5", "rm", TIMER)
    assert newcomer.play("setup", *PARTS).status == 0
    assert "MaxSessions 66" in newcomer.on("node5", "cat", SSHD)
