"""Services are restarted on half of the hosts at a time: never are all of them down."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ansible.bare_hosts import BOOKS, PATH, run
from tests.ansible.rendering import render_value

RESTARTS = ("restart", "reload")


def tasks(found: Any) -> Iterator[dict[str, Any]]:
    """Every task of a file, also those in blocks."""
    for task in found or []:
        yield task
        for part in ("block", "rescue", "always"):
            yield from tasks(task.get(part))


def restarts(task: dict[str, Any]) -> bool:
    """Whether it restarts or reloads a service."""
    for module, arguments in task.items():
        if module.endswith((".systemd_service", ".service")):
            return str(arguments.get("state", "")).startswith(RESTARTS)
        if module.endswith(".command"):
            words = str(arguments["argv"] if isinstance(arguments, dict) else arguments)
            return any(f"systemctl {word}" in words for word in RESTARTS)
    return False


FILES = sorted(path for path in BOOKS.glob("roles/*/*/*.yml") if path.parent.name in {"tasks", "handlers"})
FOUND = [
    pytest.param(task, id=f"{path.parts[-3]}: {task['name']}")
    for path in FILES
    for task in tasks(yaml.safe_load(path.read_text()))
    if restarts(task)
]


def test_restarts_are_found() -> None:
    assert len(FOUND) >= 6


@pytest.mark.parametrize("task", FOUND)
def test_what_restarts_a_service_does_it_on_some_of_the_hosts_at_a_time(task: dict[str, Any]) -> None:
    assert task["throttle"] == "{{ muster_at_once }}"


@pytest.mark.parametrize(("hosts", "at_once"), [(1, 1), (2, 1), (3, 1), (4, 2), (16, 8), (17, 8)])
def test_half_of_the_hosts_at_most_are_down_at_a_time(hosts: int, at_once: int) -> None:
    names = [f"node{number}" for number in range(hosts)]
    inventory: dict[str, dict[str, Any]] = {name: {} for name in names}
    assert int(render_value("ssh_trust", "muster_at_once", inventory, ansible_play_hosts=names)) == at_once


# Each host counts how many are down while it is.
PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.command: /bin/true
      changed_when: true
      notify: Restart it
  handlers:
    - name: Restart it
      throttle: "{{ muster_at_once }}"
      ansible.builtin.shell: touch down-$HOST; ls down-* | wc -l; sleep 0.3; rm down-$HOST
      args: {chdir: "{{ playbook_dir }}"}
      environment: {HOST: "{{ inventory_hostname }}"}
      register: seen
      changed_when: true
  post_tasks:
    - ansible.builtin.meta: flush_handlers
    - ansible.builtin.copy:
        content: "{{ seen.stdout }}"
        dest: "{{ playbook_dir }}/seen-{{ inventory_hostname }}"
"""


@pytest.mark.soak
def test_a_handler_waits_for_the_hosts_before_it(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAY)
    choices = yaml.safe_load((BOOKS / "group_vars/all.yml").read_text())
    variables = {"ansible_python_interpreter": sys.executable, "muster_at_once": choices["muster_at_once"]}
    done = run(
        *("ansible-playbook", "play.yml", "--inventory", "a,b,c,d,"),
        *("--extra-vars", json.dumps(variables)),
        cwd=tmp_path,
        env=os.environ | {"PATH": PATH, "ANSIBLE_FORKS": "8"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    down = [int((tmp_path / f"seen-{name}").read_text()) for name in "abcd"]
    assert max(down) <= 2
