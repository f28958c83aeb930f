"""Taking the cluster apart leaves every host as it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.ansible.bare_hosts import Hosts


pytestmark = pytest.mark.usefixtures("set_up")


def test_teardown_leaves_no_trace(hosts: Hosts, bare: dict[str, set[str]]) -> None:
    before = traces(hosts)
    assert all(len(before[name] - bare[name]) > 50 for name in hosts.names), "there is nothing to take away"
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
    assert hosts.play("verify", "--limit", "node1", time_sync_wait_seconds=1).status != 0


def test_a_second_teardown_has_nothing_to_do(hosts: Hosts) -> None:
    done = hosts.play("teardown")
    assert (done.status, done.changed) == (0, 0), done.text
