"""The modules of Muster that a launch loads from its start to its end, its page included."""

from __future__ import annotations

import subprocess
import sys
from operator import sub
from pathlib import Path

from tests.launching import Project
from tests.unit.test_budgets import LOADED, lines_of

MOST_LOADED = (194, 23_390)
"""Modules and lines. They may only fall; test_budgets.py has those of commands that start no ranks."""


def test_a_launch_loads_no_more_than_it_needs(project: Project) -> None:
    program = [sys.executable, "-c", LOADED, "launch", "--script", "program.py"]
    done = subprocess.run(
        program, cwd=project.path, env=project.env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    files = [Path(line) for line in done.stderr.splitlines() if line.endswith(".py")]
    found = (len(files), sum(map(lines_of, files)))
    assert max(map(sub, found, MOST_LOADED)) <= 0, found
