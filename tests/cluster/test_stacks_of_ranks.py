"""Where the ranks of a job are: asked for from elsewhere, and kept when the job stalls."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.launching import FAB, Project

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

# Rank 5 waits for a file that nobody writes; the others wait for it. No rank needs torch for that.
PROGRAM = """
import os, time
def read_shard():
    os.mkfifo("shard")
    open("shard")
def all_reduce():
    time.sleep(120)
print("ready", flush=True)
read_shard() if os.environ["RANK"] == "5" else all_reduce()
"""


def stacks(project: Project, job: str) -> subprocess.CompletedProcess[str]:
    words = (str(FAB), "stacks", job)
    return subprocess.run(
        words, cwd=project.path, env=project.env, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_the_odd_rank_of_a_stalled_job_is_named_with_its_stack(
    project: Project, cluster: Cluster, launcher: str
) -> None:
    (project.path / "stuck.py").write_text(PROGRAM)
    words = ("--launcher", launcher, "--script", "stuck.py", "--stall-timeout", "8")
    with project.start(*words) as driver:
        assert driver.stdout is not None
        lines = [driver.stdout.readline()]
        while sum("ready" in line for line in lines) < 6:
            lines.append(driver.stdout.readline())
            assert lines[-1], "".join(lines)
        found = re.search(r"job (\S+):", lines[0])
        assert found, lines
        for _ in range(3):  # a rank on a busy machine may be on its way still
            seen = stacks(project, found[1][-4:])
            if seen.stdout.count("rank") == 2:
                break
        output = driver.communicate(timeout=40)[0]
    others, _, odd = seen.stdout.partition("rank 5:")
    assert others.startswith("ranks 0-4:\n    all_reduce (stuck.py:7)"), seen.stdout + seen.stderr
    assert odd.startswith("\n    read_shard (stuck.py:5)"), seen.stdout
    assert driver.returncode == 3, output
    assert "FAILED  no rank has printed anything or used its processor for 8 s" in output
    assert "not where the others are: rank 5 (node3)" in output
    (kept,) = (project.path / "runs").glob("*/stacks.txt")
    assert kept.read_text() == seen.stdout


def test_a_job_that_is_nowhere_has_no_stacks(project: Project, cluster: Cluster) -> None:
    done = stacks(project, "20260101-000000-0000")
    assert done.returncode == 2
    assert "no job 20260101-000000-0000 here or on these hosts" in done.stderr
