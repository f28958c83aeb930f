"""A real run tells a command of its end."""

from __future__ import annotations

import json

from tests.launching import Project


def test_a_command_gets_the_failure_of_a_real_run(project: Project) -> None:
    told = project.path / "told"
    done = project.launch("--script", "program.py", "--args=raise", "--notify", f"tee '{told}'")
    assert done.status == 1
    assert json.loads(told.read_text())["failure"]["rank"] == 1
