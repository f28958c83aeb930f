"""Programs of examples/ on three hosts, under `muster launch`."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.launching import ONE_THREAD, ROOT
from tests.train.own_model import stages

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster
    from tests.launching import Project

ONE_EACH = ("--per-host", "1", *ONE_THREAD)
pytestmark = pytest.mark.soak


def test_a_parameter_server_has_workers_on_three_hosts(project: Project) -> None:
    """One rank a host: the server on the first, a worker on each of the others."""
    shutil.copy(ROOT / "examples" / "parameter_server.py", project.path)
    done = project.launch(*ONE_EACH, "--script", "parameter_server.py")
    assert done.status == 0, done.output
    assert [rank["host"] for rank in done.result["ranks"]] == ["node1", "node2", "node3"]
    (loss,) = {*re.findall(r"300 updates by 2 workers, loss (\S+)", done.output)}  # in the verdict again
    assert float(loss) < 0.2  # of an untrained model about 0.5


def test_the_minimal_example_trains_on_three_hosts(project: Project) -> None:
    shutil.copy(ROOT / "examples" / "minimal.py", project.path)
    done = project.launch("--launcher", "torchrun", *ONE_EACH, "--script", "minimal.py")
    assert done.status == 0, done.output
    assert "3 ranks: epoch 4, loss" in done.output


def test_the_script_of_the_page_own_model_trains_on_three_hosts(cluster: Cluster, project: Project) -> None:
    (project.path / "train.py").write_text(stages()[-1])
    done = project.launch(*ONE_EACH, "--script", "train.py")
    assert done.status == 0, done.output
    assert "epoch 4, loss" in done.output
    kept = cluster.exec("node1", ["ls", f"/home/muster/.muster/jobs/{done.job}/out/model.pt"])
    assert kept.returncode == 0, kept.stderr
