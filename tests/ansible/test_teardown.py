"""Taking the cluster apart leaves every host as it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ansible.bare_hosts import Hosts


pytestmark = pytest.mark.usefixtures("set_up")


# An agent's lock, as it holds one while its job runs.
HOLD = """
job=/home/muster/.muster/jobs/20261122-job
mkdir -p $job && touch $job/lock.node2
setsid flock --shared $job/lock.node2 sh -c 'echo $$ >/tmp/held; exec sleep infinity' >/dev/null 2>&1 &
"""


def test_teardown_stops_while_a_job_runs_and_names_it(hosts: Hosts) -> None:
    hosts.on("node2", "sh", "-c", HOLD)
    wait_until(lambda: hosts.on("node2", "sh", "-c", "test -e /tmp/held && echo held"), "the lock of a job")
    try:
        done = hosts.play("teardown")
        assert hosts.play("rotate-keys").status != 0
    finally:
        hosts.on(
            "node2",
            "sh",
            "-c",
            "kill $(cat /tmp/held); rm -r /tmp/held /home/muster/.muster/jobs/20261122-job",
        )
    assert done.status != 0
    assert "node2: 20261122-job" in done.text
    assert (done.changed, hosts.driver("node1", "echo in").stdout) == (0, "in\n")


# On every host but the last the files of jobs may be removed.
ALL_BUT_THE_LAST = "{{ inventory_hostname != groups['cluster'][-1] }}"


def test_teardown_keeps_job_results_and_leaves_no_trace(hosts: Hosts, bare: dict[str, set[str]]) -> None:
    before, last = traces(hosts), hosts.names[-1]
    assert all(len(before[name] - bare[name]) > 50 for name in hosts.names), "there is nothing to take away"
    for name in hosts.names:
        hosts.on(name, "runuser", "-u", "muster", "--", "sh", "-c", "echo weights >/home/muster/checkpoint")
    done = hosts.play("teardown", teardown_remove_data=ALL_BUT_THE_LAST)
    assert done.status == 0, done.text
    assert hosts.on(last, "cat", "/home/muster/checkpoint") == "weights\n"
    assert not hosts.on(last, "ls", "/etc/muster")
    no_trace_is_left(hosts, bare, hosts.names[:-1])


@pytest.mark.soak
def test_a_second_teardown_takes_what_the_first_kept(hosts: Hosts, bare: dict[str, set[str]]) -> None:
    last = hosts.names[-1]
    hosts.on(last, "runuser", "-u", "muster", "--", "sh", "-c", "echo weights >/home/muster/checkpoint")
    first = hosts.play("teardown", teardown_remove_data=ALL_BUT_THE_LAST)
    assert first.status == 0, first.text
    done = hosts.play("teardown", teardown_remove_data=True)
    assert done.status == 0, done.text
    assert [done.recap[name]["changed"] for name in hosts.names[:-1]] == [0] * (len(hosts.names) - 1)
    assert "ssh_trust : Remove the account" in done.changes(last), done.text
    no_trace_is_left(hosts, bare, hosts.names)
    assert not hosts.muster.exists()


def no_trace_is_left(hosts: Hosts, bare: dict[str, set[str]], names: list[str]) -> None:
    after = {name: hosts.traces(name) for name in names}
    assert {name: (bare[name] - found, found - bare[name]) for name, found in after.items()} == {
        name: (set(), set()) for name in names
    }


def traces(hosts: Hosts) -> dict[str, set[str]]:
    return {name: hosts.traces(name) for name in hosts.names}


@pytest.mark.soak
def test_verify_proves_that_nothing_is_left(hosts: Hosts, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = hosts.play("verify", verify_state="absent", verify_json=str(report))
    assert done.status == 0, done.text
    outcome = json.loads(report.read_text())
    assert (outcome["ok"], outcome["state"], len(outcome["checks"])) == (True, "absent", 5 * len(hosts.names))
    parts = ["ssh_trust", "time_sync"]
    assert hosts.play("verify", "--limit", "node1", verify_roles=parts).status != 0
