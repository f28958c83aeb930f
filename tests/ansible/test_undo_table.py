"""What setup says of a failure, and how it puts files back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.ansible.bare_hosts import BOOKS, PATH, recap, run
from tests.ansible.programs import loaded

undo = loaded("undo/filter_plugins/muster_undo.py")
files = loaded("undo/files/files.py")


def failure(task: str, **result: Any) -> dict[str, Any]:
    return {"undo_cause": {"task": task, "result": result, "is_of_all": False}}


def test_a_table_names_each_host_where_it_failed_and_what_was_undone() -> None:
    hosts = {
        "node1": {"undo_cause": {}, "undo_left": []},
        "node2": failure("Install", stderr="W: slow\nE: no space\n") | {"undo_left": []},
        "node3": {},
        "node4": {"undo_cause": {}, "undo_left": ["chrony"]},
        "node5": {"undo_cause": {}, "undo_problem": "Purge: no\n space"},
    }
    assert undo.table(hosts, hosts).splitlines() == [
        "host   failed at             undone",
        "node1  -                     all",
        "node2  Install               all",
        "node3  not reached any more  nothing; when it answers, run muster setup again, or "
        "muster setup --remove node3",
        "node4  -                     all but packages, which teardown removes: chrony",
        "node5  -                     not all: Purge: no space; run muster setup again, or "
        "muster setup --remove node5",
        "node2: E: no space",
    ]
    assert undo.failed(hosts, hosts) == ["node2", "node3", "node5"]


def test_files_are_put_back_and_only_services_of_changed_files_are_told(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("old")
    (tmp_path / "gone").write_text("old")
    (tmp_path / "gone").chmod(0o640)
    (tmp_path / "same").write_text("old")
    patterns = [f"{tmp_path}/[a-z]*"]
    kept = files.keep(patterns)
    (tmp_path / "kept").write_text("new")
    (tmp_path / "gone").unlink()
    (tmp_path / "new").write_text("new")
    told = tmp_path / "Told"
    actions = {f"{tmp_path}/kept": ["touch", str(told)], f"{tmp_path}/same": ["false"]}
    changed = files.restore(patterns, kept, actions)
    assert [Path(path).name for path in changed] == ["gone", "kept", "new"]
    assert files.keep(patterns) == kept
    assert told.exists()
    assert files.restore(patterns, kept, {str(tmp_path): ["false"]}) == []


PLAY = """
- hosts: cluster
  gather_facts: false
  tasks:
    - ansible.builtin.set_stats: {data: {muster_failed: [node2]}, aggregate: false}
      run_once: true
    - ansible.builtin.fail: {msg: of all}
      run_once: true
"""


def test_the_recap_counts_the_hosts_that_the_playbook_names(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("node1\nnode2\n")
    (tmp_path / "play.yml").write_text(PLAY)
    env = os.environ | {"PATH": PATH, "ANSIBLE_CONFIG": str(BOOKS / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    done = run("ansible-playbook", "play.yml", "--inventory", "hosts.txt", cwd=tmp_path, env=env)
    failed = {name: host["failed"] for name, host in recap(done.stdout).items()}
    assert (done.returncode, failed) == (2, {"node1": 0, "node2": 1}), done.stdout + done.stderr
