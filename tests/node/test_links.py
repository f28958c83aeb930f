"""A host says which links of the code lead to nothing on it, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.deploy.core.agent.supervisor import require_targets
from tests.launching import make_project


def test_the_links_without_a_target_are_named(tmp_path: Path) -> None:
    require_targets([("data", str(tmp_path))])
    absent = [(f"link{number}", f"/nowhere/{number}") for number in range(12)]
    with pytest.raises(OSError, match=r"link0 -> /nowhere/0, .*link9 -> .*, and 2 more; mount the target"):
        require_targets([("data", str(tmp_path)), *absent])


@pytest.mark.slow
def test_a_launch_follows_an_absolute_link_and_names_the_host_that_lacks_its_target(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    shared = tmp_path / "shared"
    (project.path / "data").symlink_to(shared)
    (project.path / "read.py").write_text("print(open('data/x').read())\n")
    (project.path / "one.txt").write_text("localhost slots=1\n")
    words = ("--hosts", "one.txt", "read.py")
    refused = project.launch(*words)
    assert refused.status != 0
    assert (
        f"localhost: cannot make the job's folder: links of the code have no target here: data -> {shared}"
        in (refused.output)
    )
    shared.mkdir()
    (shared / "x").write_text("from the shared folder")
    assert "from the shared folder" in project.launch(*words).output
