"""How a host takes sshd's drop-in back: the commands of the role, on files of the test."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from tests.ansible.bare_hosts import run
from tests.ansible.rendering import render_value

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
