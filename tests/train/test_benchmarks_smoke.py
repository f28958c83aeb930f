"""The benchmarks of collectives and of ways to synchronise still run; their figures are for people."""

from __future__ import annotations

import re
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
    words = ("--rounds", "1", "--networks", "resnet26", "--strategies", "none", "ddp")
    job = launch("mpirun", 2, str(BENCHMARKS / "sync.py"), *words)
    assert job.status == 0, job.stderr
    assert "ddp" in job.stdout


def test_threads_against_processes(launch: Launch) -> None:
    job = launch("torchrun", 2, str(BENCHMARKS / "data_parallel.py"))
    assert job.status == 0, job.stderr
    assert re.search(r"\| threads \| \d+ \(.*\) \| \d+\.\d\d \|", job.stdout)


def test_trainers_of_several_libraries(launch: Launch) -> None:
    """Libraries that are not installed are left out."""
    words = ("--model", "gpt", "--rounds", "1", "--starts", "1")
    job = launch("single", 1, str(BENCHMARKS / "trainers.py"), *words)
    assert job.status == 0, job.stderr
    assert re.search(r"\| muster.train \| \d+ \(.*\) \| \d+\.\d\d \|", job.stdout)
