"""The probe of the node image's own torch has the tables of docs/train-tools.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.launching import MUSTER, ROOT
from tests.train.probe_tables import DEBIAN_GLOO, DEBIAN_MPI, documented, told

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

import subprocess

pytestmark = pytest.mark.soak


@pytest.mark.parametrize(("backend", "table"), [("mpi", DEBIAN_MPI), ("gloo", DEBIAN_GLOO)])
def test_the_node_image_has_that_table(cluster: Cluster, tmp_path: Path, backend: str, table: str) -> None:
    hosts = ("--hosts", str(cluster.hosts_file), "--include", "node1", "--runs", str(tmp_path))
    probe = ("--backend", backend, "--module", "benchmarks.tools.probe", "--args=--json")
    done = subprocess.run(
        [str(MUSTER), "launch", *hosts, *probe],
        cwd=ROOT,
        env=cluster.env,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = tmp_path.glob("*/logs/rank-0000@node1.out")
    text = log.read_text()
    assert told(text[text.index("{") :]) == documented(table)
