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


def test_teardown_keeps_what_jobs_wrote_unless_it_is_told_otherwise(
    hosts: Hosts, bare: dict[str, set[str]]
) -> None:
    before = traces(hosts)
    assert all(len(before[name] - bare[name]) > 50 for name in hosts.names), "there is nothing to take away"
    hosts.on("node3", "runuser", "-u", "muster", "--", "sh", "-c", "echo weights >/home/muster/checkpoint")
    done = hosts.play("teardown")
    assert done.status == 0, done.text
    assert hosts.on("node3", "cat", "/home/muster/checkpoint") == "weights\n"
    assert not hosts.on("node3", "ls", "/etc/muster")


def test_teardown_leaves_no_trace(hosts: Hosts, bare: dict[str, set[str]]) -> None:
    done = hosts.play("teardown", teardown_remove_data=True)
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
    assert (outcome["ok"], outcome["state"], len(outcome["checks"])) == (True, "absent", 7 * len(hosts.names))
    assert hosts.play("verify", "--limit", "node1", time_sync_wait_seconds=1).status != 0


def test_a_second_teardown_has_nothing_to_do(hosts: Hosts) -> None:
    done = hosts.play("teardown")
    assert (done.status, done.changed) == (0, 0), done.text
