"""How far a playbook is, and what it waits for: a live line on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ansible.bare_hosts import BOOKS, PATH
from tests.terminals import shown_on

pytestmark = pytest.mark.skipif(not shutil.which("ansible-playbook", path=PATH), reason="no Ansible here")

PLAY = """
- hosts: all
  gather_facts: false
  connection: local
  tasks:
    - name: first
      ansible.builtin.debug: {msg: hello}
    - block:
        - name: second
          ansible.builtin.include_tasks: more.yml
      rescue:
        - ansible.builtin.debug: {msg: never}
      always:
        - name: third
          ansible.builtin.debug: {msg: hello}
- hosts: all
  serial: 1
  gather_facts: false
  connection: local
  tasks:
    - name: fourth
      ansible.builtin.debug: {msg: hello}
"""
SLOW = """
- hosts: all
  gather_facts: false
  vars: {ansible_python_interpreter: "{{ ansible_playbook_python }}"}
  connection: local
  tasks:
    - name: slow on b
      ansible.builtin.wait_for: {path: "{{ playbook_dir }}/gate-{{ inventory_hostname }}"}
    - name: quick
      ansible.builtin.debug: {msg: hello}
"""
MORE = """
- ansible.builtin.debug: {msg: included}
"""


@pytest.fixture
def play(tmp_path: Path) -> list[str]:
    (tmp_path / "some-play.yml").write_text(PLAY)
    (tmp_path / "more.yml").write_text(MORE)
    (tmp_path / "ansible.cfg").write_text(
        f"[defaults]\ncallback_plugins = {BOOKS}/callback_plugins\ncallbacks_enabled = progress\n"
    )
    return ["ansible-playbook", "some-play.yml", "--inventory", "a,b,"]


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": PATH,
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
        "TERM": "xterm",
        "MUSTER_PROGRESS": "",
    }


def test_elsewhere_a_line_on_stderr_counts_each_task_once(play: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        play, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    # On a busy machine a line may name the hosts that a task waits for.
    assert [line for line in done.stderr.splitlines() if "%" in line] == [
        "some-play: 25 %, 1 of 4 tasks",
        "some-play: 50 %, 2 of 4 tasks",
        "some-play: 75 %, 3 of 4 tasks",
    ]
    assert " tasks" not in done.stdout


@pytest.mark.parametrize("on_terminal", [True, False], ids=["terminal", "pipe"])
def test_a_slow_task_names_the_hosts_still_at_it(play: list[str], tmp_path: Path, on_terminal: bool) -> None:
    (tmp_path / "some-play.yml").write_text(SLOW)
    (tmp_path / "gate-a").touch()
    ours, theirs = pty.openpty() if on_terminal else os.pipe()
    with subprocess.Popen(
        play, cwd=tmp_path, env=environment(tmp_path), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    ) as running:
        os.close(theirs)
        text = ""
        while "some-play: 0 of 2 tasks, waiting for 1 of 2 hosts: b" not in text:
            text += os.read(ours, 1 << 16).decode()
            assert "PLAY RECAP" not in text
        (tmp_path / "gate-b").touch()
        text += shown_on(ours)
    os.close(ours)
    assert running.returncode == 0 and "ok: [b]" in text and text.count("PLAY RECAP") == 1
    assert "tasks" not in text.rpartition("PLAY RECAP")[2]
