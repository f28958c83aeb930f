"""An editor in a rank, and a port of its host, over SSH and in a container, both without debugpy."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from tests.attaching import LINE, muster, printed, started
from tests.cluster.test_containers import tiny  # noqa: F401  # a fixture
from tests.launching import Project, make_project
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster


def test_a_rank_of_another_host_is_debugged_and_its_port_reached(
    project: Project, cluster: Cluster, tmp_path: Path
) -> None:
    job = started(project, tmp_path)
    line = printed(project, job, "] port ")
    with muster(project, "subProcess", "debug", job, "--rank", "3", "--dap", "--port", "0") as debug:
        editor = debug.editor()
        top = editor.stopped()[0]
        assert (top["source"]["path"], top["line"]) == (str(project.path / "train.py"), LINE)
        assert editor.evaluate("rank, factor", top) == "(3, 3.5)"
        editor.close()
    where = ("forward", job, line.split()[-1], "--rank", "1", "--port", "0")
    with (
        muster(project, "Ctrl-C", *where) as forward,
        urllib.request.urlopen(f"http://127.0.0.1:{forward.port}/a", timeout=PATIENCE) as page,
    ):
        assert page.read() == b"/a" * 100_000
    assert project.fab("stop", job).returncode == 0


def test_a_rank_in_a_container_gets_debugpy(cluster: Cluster, tiny: str, tmp_path: Path) -> None:  # noqa: F811
    project = make_project(tmp_path / "a project")
    job = started(project, tmp_path, "--image", tiny)
    printed(project, job, "] port ")
    with muster(project, "subProcess", "debug", job, "--rank", "1", "--dap", "--port", "0") as debug:
        editor = debug.editor()
        assert editor.variables(editor.stopped()[0]) == {"batch": "2.0", "factor": "1.5"}
        editor.close()
    assert project.fab("stop", job).returncode == 0
