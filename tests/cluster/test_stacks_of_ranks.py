"""Where the ranks of a job are: asked for from elsewhere, and kept when the job stalls."""

from __future__ import annotations

import re
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.launching import Project
from tests.waiting import PATIENCE, read_until, wait_until

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

# Rank 5 waits for a file without a writer; the others wait for it. No rank needs torch for that.
PROGRAM = """
import os, time
def read_shard():
    os.mkfifo("shard")
    open("shard")
def all_reduce():
    time.sleep(300)
print("ready", flush=True)
read_shard() if os.environ["RANK"] == "5" else all_reduce()
"""


def stacks(project: Project, job: str) -> subprocess.CompletedProcess[str]:
    return project.muster("stacks", job)


def seen_whole(project: Project, job: str) -> str:
    """The stacks that were asked for, once every rank has come from its last words to where it waits."""
    answers: list[str] = []

    def both_places() -> bool:
        done = stacks(project, job)
        answers.append(done.stdout + done.stderr)
        others, _, odd = done.stdout.partition("rank 5:")
        return "ranks 0-4:" in others and "all_reduce (" in others and "read_shard (" in odd

    wait_until(both_places, lambda: f"both places, but: {answers}")
    return answers[-1]


@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.soak)])
def test_the_stacks_of_a_running_job_can_be_read(project: Project, cluster: Cluster, launcher: str) -> None:
    (project.path / "stuck.py").write_text(PROGRAM)
    with project.start("--launcher", launcher, "--script", "stuck.py") as driver:
        found = re.search(r"job (\S+):", "".join(read_until(driver, "ready", 6)))
        assert found
        shown = seen_whole(project, found[1][-4:])
        driver.send_signal(signal.SIGINT)
        driver.communicate(timeout=PATIENCE)
    assert_odd(shown)


def assert_odd(shown: str) -> None:
    others, _, odd = shown.partition("rank 5:")
    assert others.startswith("ranks 0-4:\n    all_reduce (stuck.py:7)"), shown
    assert odd.startswith("\n    read_shard (stuck.py:5)"), shown


def test_a_job_that_is_nowhere_has_no_stacks(project: Project, cluster: Cluster) -> None:
    done = stacks(project, "20260101-000000-0000")
    assert done.returncode == 2
    assert "no job 20260101-000000-0000 here or on the hosts" in done.stderr
