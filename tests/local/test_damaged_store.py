"""A launch on a host whose store has lost or changed the code of an earlier launch."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.damage import DAMAGE
from tests.launching import Project

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
