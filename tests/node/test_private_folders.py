"""Private folders of agents: who leaves one behind, and what the next agent may remove."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from muster.deploy.core.agent.supervisor import make_private_folder, sweep

KILLED = """
import os, pathlib, signal, sys
from muster.deploy.core.agent.supervisor import make_private_folder
folder = make_private_folder()
(folder / "data").mkdir()
(folder / "data" / "file").touch()
(folder / "data" / "link").symlink_to(sys.argv[1])
(folder / "link").symlink_to(sys.argv[1])
print(folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def test_a_killed_agents_folder_goes_and_a_living_ones_stays(place: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    own = make_private_folder()
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(kept)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as agent:
        assert agent.stdout
        left = Path(agent.stdout.readline().strip())
        sweep(place)
        assert left.is_dir(), "its agent lives"
        agent.kill()
        agent.wait()
    sweep(place)
    assert sorted(place.iterdir()) == [own]
    assert (kept / "file").exists(), "no link is followed"


def test_what_no_agent_has_left_is_not_touched(place: Path, tmp_path: Path) -> None:
    old = place / "muster-abcdefgh"  # of a version that holds no lock
    old.mkdir(0o700)
    other = place / "muster-report-abcdefgh"
    other.mkdir(0o700)
    (other / "lock").touch()
    open_to_others = place / "muster-12345678"
    open_to_others.mkdir()
    open_to_others.chmod(0o755)
    (open_to_others / "lock").touch()
    target = tmp_path / "target"
    target.mkdir(0o700)
    (target / "lock").touch()
    (place / "muster-aaaaaaaa").symlink_to(target)
    locked = place / "muster-bbbbbbbb"
    locked.mkdir(0o700)
    (locked / "lock").symlink_to(target / "lock")
    before = sorted(place.iterdir())
    sweep(place)
    assert sorted(place.iterdir()) == before
    assert (target / "lock").exists()


def test_the_folder_of_another_user_is_not_touched(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place / "muster-abcdefgh"
    folder.mkdir(0o700)
    (folder / "lock").touch()
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    sweep(place)
    assert folder.is_dir()
    monkeypatch.undo()
    sweep(place)
    assert not folder.exists()
