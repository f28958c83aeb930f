"""The benchmarks of a launch, of many hosts and of data still run; their figures are for people."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.launching import ROOT

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

pytestmark = pytest.mark.soak


def benchmark(cluster: Cluster, name: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / name), *words],
        cwd=ROOT,
        env=cluster.env,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_launch(cluster: Cluster) -> None:
    said = benchmark(cluster, "launch.py", "--hosts", str(cluster.hosts_file), "--rounds", "1")
    assert "muster launch --launcher mpirun adds" in said
    assert "muster launch --launcher torchrun adds" in said


def test_scale(cluster: Cluster) -> None:
    assert "| 3 hosts |" in benchmark(cluster, "scale.py", "--sizes", "3", "--rounds", "1")


def test_data(cluster: Cluster) -> None:
    sizes = ("--hosts", "3", "--megabytes", "2", "--files", "20")
    said = benchmark(cluster, "data.py", *sizes, "--only", "muster")
    assert "| muster data push | " in said
    assert "nan" not in said


def test_sharded_losses(cluster: Cluster) -> None:
    """The exit status is 1 if a host that was deleted in a save cost a complete step, or a bit."""
    assert "| 8 | 8 |" in benchmark(cluster, "sharded_losses.py", "--rounds", "8")
