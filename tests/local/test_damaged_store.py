"""A launch on a host whose store has lost or changed the code of an earlier launch."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.damage import DAMAGE
from tests.launching import ROOT, Project

PROGRAM = 'print("the real program")\n'
DIGEST = hashlib.sha256(PROGRAM.encode()).hexdigest()


@pytest.mark.parametrize(
    "kind", ["empty", *(pytest.param(kind, marks=pytest.mark.soak) for kind in DAMAGE if kind != "empty")]
)
def test_a_launch_never_runs_a_damaged_program_and_heals_the_store(project: Project, kind: str) -> None:
    (project.path / "said.py").write_text(PROGRAM)
    first = project.launch("--script", "said.py")
    assert first.status == 0, first.output
    kept = Path(project.env["HOME"], ".muster", "store", DIGEST[:2], DIGEST[2:])
    DAMAGE[kind](kept)
    again = project.launch("--script", "said.py")
    assert again.status == 0, again.output
    assert "[0 localhost] the real program" in again.output
    assert kept.read_text() == PROGRAM


# -- what a change of one file costs the next launch: benchmarks/edits.py, and its figures of bytes --


FILE_BYTES = 4096


@pytest.mark.soak
def test_after_a_change_of_one_file_that_file_alone_is_sent(project: Project) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "edits.py"), "--rounds", "1", "--files", "50"],
        cwd=project.path,
        env=project.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sent = {name: int(number) for name, number in re.findall(r"^\| ([a-z ]+) \| (\d+) \|", done.stdout, re.M)}
    # Hexadecimal digits compress to about half.
    assert sent["first launch"] - sent["unchanged"] > 50 * FILE_BYTES / 2
    for change in ("one file changed", "one file new"):
        assert FILE_BYTES / 2 < sent[change] - sent["unchanged"] < 2 * FILE_BYTES


@pytest.mark.soak
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_detached_job_never_runs_a_damaged_program(project: Project, kind: str) -> None:
    (project.path / "said.py").write_text(PROGRAM)
    first = project.launch("--script", "said.py")
    assert first.status == 0, first.output
    kept = Path(project.env["HOME"], ".muster", "store", DIGEST[:2], DIGEST[2:])
    DAMAGE[kind](kept)
    job = project.detach("--script", "said.py")
    attached = project.muster("attach", job)
    assert attached.returncode == 0, attached.stdout + attached.stderr
    assert "the real program" in attached.stdout
    assert kept.read_text() == PROGRAM
