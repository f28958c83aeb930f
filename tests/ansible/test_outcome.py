"""The outcome of verify.yml, by its filters."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tests.ansible.bare_hosts import BOOKS, PATH, run
from tests.ansible.programs import loaded

plugin = loaded("../filter_plugins/muster_report.py")
ROLES = ["time_sync", "bare"]


def host(ok: bool = True, detail: str = "") -> dict[str, Any]:
    """A host that was examined, with one check of each role."""
    checks = {f"{role}_checks": [{"id": f"{role}.fit", "ok": True, "detail": ""}] for role in ROLES}
    return {"preflight_probe": {}, **checks, "bare_checks": [{"id": "bare.fit", "ok": ok, "detail": detail}]}


def outcome(hosts: dict[str, dict[str, Any]], limited: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = plugin.outcome(hosts, list(hosts), ROLES, "present", limited)
    return found


def test_all_checks_of_all_hosts_have_to_pass() -> None:
    found = outcome({"node1": host(), "node2": host()})
    assert (found["ok"], found["state"], len(found["checks"])) == (True, "present", 4)
    assert found["checks"][0] == {"host": "node1", "id": "time_sync.fit", "ok": True, "detail": ""}
    assert not outcome({"node1": host(), "node2": host(ok=False)})["ok"]
    assert not outcome({})["ok"]


def test_a_host_that_was_not_reached_has_not_passed_unless_it_was_left_out() -> None:
    hosts: dict[str, dict[str, Any]] = {"node1": host(), "node2": {}}
    found = outcome(hosts)
    assert not found["ok"]
    assert plugin.failures(found["checks"]).splitlines() == [
        "node2: time_sync.reached: not reached, or stopped by an error",
        "node2: bare.reached: not reached, or stopped by an error",
    ]
    assert outcome(hosts, limited=True)["ok"]
    assert not outcome({"node2": {}}, limited=True)["ok"]


def test_hosts_that_fail_for_the_same_reason_share_a_line() -> None:
    hosts = {f"node{number}": host(ok=False, detail=f"node{number} lacks mpirun") for number in (1, 2, 3)}
    text = plugin.failures(outcome(hosts | {"node4": host()})["checks"])
    assert text == "node[1-3]: bare.fit: node[1-3] lacks mpirun"


# -- hosts that a playbook cannot reach share a line if they have the same reason --


if TYPE_CHECKING:
    from pathlib import Path

PLAY = """
- hosts: cluster
  gather_facts: false
  tasks:
    - ansible.builtin.raw: "true"
    - ansible.builtin.raw: "true"
"""


def play(folder: Path, *options: str) -> tuple[int, list[str]]:
    """The exit status and the lines of a playbook: nine names without an address, and a port without sshd."""
    (folder / "hosts.txt").write_text("node[1-9].invalid\n127.0.0.2 port=1\n")
    (folder / "play.yml").write_text(PLAY)
    done = run(
        *("ansible-playbook", "play.yml", "--inventory", "hosts.txt", *options),
        cwd=folder,
        env=os.environ
        | {
            "PATH": PATH,
            "ANSIBLE_CONFIG": str(BOOKS / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "LC_ALL": "C.UTF-8",
        },
    )
    return done.returncode, done.stdout.splitlines()


def test_hosts_that_are_unreachable_for_one_reason_share_a_line(tmp_path: Path) -> None:
    status, lines = play(tmp_path)
    assert status == 4
    assert [line for line in lines if "cannot log in" in line] == [
        "node[1-9].invalid: cannot log in: ssh: Could not resolve hostname node[1-9].invalid: "
        "Name or service not known",
        "127.0.0.2: cannot log in: ssh: connect to host 127.0.0.2 port 1: Connection refused",
    ]


def test_the_results_of_each_host_are_there_with_v(tmp_path: Path) -> None:
    _, lines = play(tmp_path, "-v")
    assert sum("UNREACHABLE" in line for line in lines) == 10
