"""How a host takes sshd's drop-in back: the commands of the role, on files of the test."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ansible.bare_hosts import BOOKS, PATH, recap, run
from tests.ansible.programs import loaded
from tests.ansible.rendering import render, render_value

INVENTORY: dict[str, dict[str, object]] = {"node1": {"addresses": ["10.0.0.1"]}}
NEW = "# new\n"


class Folder:
    """A folder in place of sshd's, and stand-ins for programs; `systemctl` does nothing."""

    def __init__(self, path: Path) -> None:
        self.dropin = path / "10-muster.conf"
        self.before = path / "10-muster.before"
        self.path = path
        self.program("systemctl")

    def program(self, name: str, script: str = "") -> None:
        """Put a stand-in for a program before it on PATH."""
        file = self.path / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def do(self, name: str) -> int:
        """Run a command of the role; returns its status."""
        return self.done(name).returncode

    def done(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the role."""
        command = render_value(
            "ssh_trust",
            f"ssh_trust_{name}",
            INVENTORY,
            ssh_trust_dropin=str(self.dropin),
            ssh_trust_before=str(self.before),
            ssh_trust_dropin_hash=hashlib.sha256(NEW.encode()).hexdigest(),
        )
        return run("env", f"PATH={self.path}:/usr/bin:/bin", "sh", "-c", command)

    def texts(self) -> tuple[str | None, str | None]:
        """The drop-in and what was there before, None where there is no file."""
        drop_in, before = (file.read_text() if file.exists() else None for file in (self.dropin, self.before))
        return drop_in, before


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize("before", ["# old\n", None], ids=["one before", "none before"])
def test_an_undo_brings_the_old_files_back_however_often(folder: Folder, before: str | None) -> None:
    if before:
        folder.dropin.write_text(before)
    folder.do("remember")
    folder.dropin.write_text(NEW)
    for _ in ("the host's timer", "setup, which found the same"):
        folder.do("undo_now")
        assert folder.texts() == (before, None)


@pytest.mark.parametrize("before", ["# old\n", None], ids=["one before", "none before"])
def test_a_drop_in_is_kept_only_if_the_timer_was_not_faster(folder: Folder, before: str | None) -> None:
    for is_late in (False, True):
        folder.dropin.unlink(missing_ok=True)
        if before:
            folder.dropin.write_text(before)
        folder.do("remember")
        folder.dropin.write_text(NEW)
        if is_late:
            folder.do("undo_now")
        status = folder.do("keep")
        assert status == is_late
        assert folder.texts() == (before if is_late else NEW, None)
        folder.do("undo_now")  # a timer that was stopped in the middle of it
        assert folder.texts() == (before if is_late else NEW, None)


@pytest.mark.parametrize("before", ["# old\n", None], ids=["one before", "none before"])
def test_a_login_that_fails_after_the_timer_is_told_apart(folder: Folder, before: str | None) -> None:
    for is_late in (False, True):
        folder.dropin.unlink(missing_ok=True)
        if before:
            folder.dropin.write_text(before)
        folder.do("remember")
        folder.dropin.write_text(NEW)
        if is_late:
            folder.do("undo_now")
        assert folder.done("give_up").stdout == ("late\n" if is_late else "")
        assert folder.texts() == (before, None)


def test_on_a_full_disk_what_was_there_before_stays(folder: Folder) -> None:
    folder.dropin.write_text("# old\n")
    folder.program("cp", 'for to; do :; done; printf "#" > "$to"; exit 1')
    assert folder.do("remember") == 1
    folder.do("undo_now")  # as setup does after an error
    assert folder.texts() == ("# old\n", None)
    assert [file.name for file in folder.path.glob("10-*")] == ["10-muster.conf"]


# -- what setup says of a failure, and how it puts files back --


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
        "node6": {"undo_cause": {}, "undo_left": [], "undo_edited": ["/etc/a", "/etc/b"]},
        "node7": failure("Loop", results=[{"failed": False}, {"failed": True, "msg": "node7: no"}]),
    }
    inventory = {name: host | {"undo_kept": {}} for name, host in hosts.items()}
    assert render("undo", "table.j2", inventory).strip().splitlines() == [
        "host   failed at             undone",
        "node1  -                     all",
        "node2  Install               all",
        "node3  not reached any more  nothing; when it answers, run muster setup again, or "
        "muster setup --remove node3",
        "node4  -                     all but packages, which teardown removes: chrony",
        "node5  -                     not all: Purge: no space; run muster setup again, or "
        "muster setup --remove node5",
        "node6  -                     all but what somebody else has changed since: /etc/a /etc/b",
        "node7  Loop                  nothing; when it answers, run muster setup again, or "
        "muster setup --remove node7",
        "node2: E: no space",
        "node7: no",
    ]
    assert render_value("undo", "undo_failed", inventory) == ["node2", "node3", "node5", "node7"]


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
    changed = files.restore(patterns, kept, actions, {})["changed"]
    assert [Path(path).name for path in changed] == ["gone", "kept", "new"]
    assert files.keep(patterns) == kept
    assert told.exists()
    assert files.restore(patterns, kept, {str(tmp_path): ["false"]}, {})["changed"] == []


def test_what_somebody_else_changes_during_a_setup_is_left_and_named(tmp_path: Path) -> None:
    ours, theirs, new = (str(tmp_path / name) for name in ("ours", "theirs", "new"))
    for path in (ours, theirs):
        Path(path).write_text("old")
    kept = files.keep([f"{tmp_path}/*"])
    for path in (ours, theirs, new):
        Path(path).write_text("setup's")
    written = dict.fromkeys((ours, theirs, new), hashlib.sha256(b"setup's").hexdigest())
    Path(theirs).write_text("an administrator's")
    Path(new).write_text("an administrator's")
    outcome = files.restore([f"{tmp_path}/*"], kept, {}, written)
    assert outcome == {"changed": [ours], "left": [new, theirs]}
    assert [Path(path).read_text() for path in (ours, theirs)] == ["old", "an administrator's"]


MARKS = "# {} of the hosts of a Muster cluster\n"


def block(key: str) -> str:
    return MARKS.format("BEGIN") + f"node1 {key}\n" + MARKS.format("END")


@pytest.mark.parametrize("before", [block("old"), ""], ids=["set up", "no block before"])
def test_in_the_file_of_host_keys_only_the_block_of_setup_is_put_back(tmp_path: Path, before: str) -> None:
    file = tmp_path / "ssh_known_hosts"
    file.write_text(f"own line\n{before}")
    kept = files.keep([str(file)])
    file.write_text(f"own line\n{block('new')}added meanwhile\n")
    file.chmod(0o640)
    written = {str(file): hashlib.sha256(b"node1 new").hexdigest()}
    assert files.restore([str(file)], kept, {}, written)["changed"] == [str(file)]
    assert file.read_text() == f"own line\n{before}added meanwhile\n"
    assert file.stat().st_mode & 0o777 == 0o640
    file.write_text(block("new"))
    files.restore([str(file)], {}, {}, written)
    assert not file.exists()
    file.write_text(f"own line\n{block('edited')}")
    assert files.restore([str(file)], kept, {}, written)["left"] == [str(file)]


def test_a_full_disk_costs_its_own_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("old")
    kept = files.keep([f"{tmp_path}/*"])
    for name in ("a", "b", "new"):
        (tmp_path / name).write_text("setup's")
    os_fdopen = os.fdopen

    def fdopen(descriptor: int, mode: str) -> object:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == ".a.muster-undo":
            os.close(descriptor)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os_fdopen(descriptor, mode)

    monkeypatch.setattr(os, "fdopen", fdopen)
    with pytest.raises(SystemExit, match=f"not put back: {tmp_path}/a: No space left on device"):
        files.restore([f"{tmp_path}/*"], kept, {}, {})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "setup's", "b": "old"}


def test_on_a_full_disk_the_downloads_go_before_a_file_that_cannot_be_written() -> None:
    tasks = yaml.safe_load((BOOKS / "roles/undo/tasks/put_back.yml").read_text())
    first = tasks[0]["ansible.builtin.file"]
    assert first == {"path": "/var/cache/muster", "state": "absent"}
    assert "command" in "".join(tasks[1])


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
