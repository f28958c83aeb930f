"""A port of a rank's host, over SSH."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.forwarding import muster, printed, started
from tests.launching import Project
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster


@pytest.mark.soak
def test_a_port_of_a_rank_s_host_is_reached(project: Project, cluster: Cluster, tmp_path: Path) -> None:
    job = started(project, tmp_path)
    line = printed(project, job, "] port ")
    where = ("forward", job, line.split()[-1], "--rank", "1", "--port", "0")
    with (
        muster(project, "Ctrl-C", *where) as forward,
        urllib.request.urlopen(f"http://127.0.0.1:{forward.port}/a", timeout=PATIENCE) as page,
    ):
        assert page.read() == b"/a" * 100_000
    assert project.muster("stop", job).returncode == 0
