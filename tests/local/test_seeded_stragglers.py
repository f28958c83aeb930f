"""Real jobs in which one rank is slow: the verdict of the run names it, and `muster why` while it runs."""

from __future__ import annotations

import functools
import json

import pytest

from tests.launching import Project
from tests.stragglers.live import Running, running
from tests.stragglers.table import BALANCED, SEEDED, line_of
from tests.waiting import wait_until

# Rank 1 takes four times as long for a step as rank 0.
SLOW = """
import os, time
import torch, torch.distributed as dist
def read():
    time.sleep(0.2 if os.environ["RANK"] == "1" else 0.05)
dist.init_process_group("gloo")
for step in range(60):
    read()
    dist.all_reduce(torch.ones(1000))
"""


def test_the_verdict_and_the_page_of_a_recorded_run_name_the_rank_that_is_late(project: Project) -> None:
    (project.path / "train.py").write_text(SLOW)
    launched = project.launch("--script", "train.py")
    assert launched.status == 0, launched.output
    (late,) = launched.result["late"]
    assert (late["rank"], late["host"], late["regular"]) == (1, "localhost", True)
    assert "slow: rank 1 on localhost was late: the others waited " in launched.output
    assert "in all_reduce of group 0 (3.9 KiB, train.py:9)" in launched.output
    looks = [json.loads(line) for line in (launched.folder / "pace.jsonl").read_text().splitlines()]
    assert [rank["late"] for rank in looks[-1]["ranks"]] == [False, True]
    assert "rank 1 on localhost was late" in (launched.folder / "report.html").read_text()


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_each_straggler_is_named_thirty_steps_later(project: Project, backend: str) -> None:
    """Where it is rank 1, the line of the program is its likely cause.

    Every second one under each backend: what names them knows of no backend.
    """
    missed = []
    phases = SEEDED[backend == "mpi" :: 2]
    with running(project, phases, backend) as job:
        for phase in phases:
            pace = job.paces()
            named = [rank.rank for rank in pace.late] if pace else []
            if named != [phase.slow]:
                missed.append((phase.word, named))
            if phase.slow == 1:
                line = line_of(phase.part)
                wait_until(functools.partial(blamed, job, line), f"{line} as the cause")
            job.next()
    assert not missed


def blamed(job: Running, line: str) -> bool:
    """Whether a line is said to be why rank 1 is slow."""
    return any(one.rank == 1 and line in one.cause for one in job.stragglers())


@pytest.mark.soak
def test_nobody_is_named_in_balanced_runs(project: Project) -> None:
    named = []
    with running(project, BALANCED) as job:
        for phase in BALANCED:
            pace = job.paces()
            assert pace, phase
            named += [(phase.word, rank) for rank in pace.late]
            job.next()
    assert not named
