"""The benchmarks of collectives and of ways to synchronise still run; their figures are for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.train.conftest import Launch

pytestmark = pytest.mark.soak
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_collectives(launch: Launch) -> None:
    job = launch("mpirun", 2, str(BENCHMARKS / "collectives.py"), "--rounds", "1", "--largest", "4096")
    assert job.status == 0, job.stderr
    assert {"Gloo", "mpi4py"} <= set(job.stdout.replace(",", " ").split()), job.stdout


def test_ways_to_synchronise(launch: Launch) -> None:
    words = ("--rounds", "1", "--networks", "resnet26", "--ways", "none", "ddp", "mpi4py")
    job = launch("mpirun", 2, str(BENCHMARKS / "sync.py"), *words)
    assert job.status == 0, job.stderr
    assert "ddp" in job.stdout
    assert "mpi4py" in job.stdout
