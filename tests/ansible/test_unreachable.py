"""Hosts that a playbook cannot reach share a line if they have the same reason."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.ansible.bare_hosts import BOOKS, PATH, run

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
