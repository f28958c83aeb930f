"""The faults of the GPU proof, with calls of C in place of kernels, and torch's own messages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launching import ROOT, Project

PROGRAM = ROOT / "benchmarks" / "gpu" / "fault_program.py"
IS_FULL = "GPU 0 of localhost is full: rank 1 asked for 2.00 GiB, of 79.19 GiB 1.31 GiB is free"
SHARES = "it has 7.62 GiB, rank 0 has 70.25 GiB; start one rank for each GPU: --slots gpus"


@pytest.mark.slow
def test_a_rank_without_memory_on_its_gpu_is_told_which_rank_has_it(project: Project) -> None:
    shutil.copy(PROGRAM, project.path / "train.py")
    launched = project.launch("--script", "train.py", "--args", "memory cpu 600")
    assert launched.status == 1, launched.output
    assert "FAILED  rank 1 on localhost: exit status 1\n" in launched.output
    assert f"        note: {IS_FULL}, {SHARES}\n" in launched.output


@pytest.mark.soak
def test_every_fault_of_the_proof_is_told_on_a_cpu(tmp_path: Path) -> None:
    words = ("--parts", "faults", "--device", "cpu", "--short", "--patience", "4", "--out", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert len((tmp_path / "faults.jsonl").read_text().splitlines()) > 20
