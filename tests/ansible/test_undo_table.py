"""What setup says of a failure, and how it puts files back."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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


def test_the_recap_counts_the_hosts_that_the_playbook_names(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = loaded("../callback_plugins/plain.py")
    monkeypatch.setattr(plain.default.CallbackModule, "v2_playbook_on_stats", lambda *_: None)
    stats = SimpleNamespace(custom={"_run": {"muster_failed": ["node2"]}}, failures=defaultdict(int, node1=1))
    stats.processed = {"node1": 1}
    plain.CallbackModule().v2_playbook_on_stats(stats)
    assert (stats.failures, stats.processed) == ({"node2": 1}, {"node1": 1, "node2": 1})
