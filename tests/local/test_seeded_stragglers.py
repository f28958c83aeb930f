"""Real jobs in which one rank is slow: the verdict of the run names it, and `muster why` while it runs."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.deploy.features.why.messages import Straggler
from tests.launching import Project
from tests.stragglers.live import Running, running
from tests.stragglers.table import BALANCED, PROGRAM, SEEDED, Phase, line_of
from tests.waiting import PATIENCE, read_until, wait_until

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


# The work of each step is 80 to 120 % of the mean; MORE: of rank 1, this much more.
VARIES = """
import os, random, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
chance, more = random.Random(rank), MORE if rank == 1 else 1.0
dist.init_process_group("gloo")
for step in range(400):
    time.sleep(0.06 * chance.uniform(0.8, 1.2) * more)
    dist.all_reduce(torch.ones(1000))
"""


@pytest.mark.soak
def test_a_rank_with_a_quarter_more_work_that_varies_is_named_in_the_run_and_at_its_end(
    project: Project,
) -> None:
    (project.path / "train.py").write_text(VARIES.replace("MORE", "1.25"))
    (project.path / "hosts.txt").write_text("localhost slots=3\n")
    with project.start("--script", "train.py") as driver:
        found = re.search(r"job (\S+):", "".join(read_until(driver, "job ", 1)))
        assert found
        record = project.path / "runs" / found[1] / "job.json"

        def recorded() -> list[int]:
            late = json.loads(record.read_text()).get("late", []) if record.exists() else []
            return [rank["rank"] for rank in late]

        assert wait_until(recorded, "the driver to name it") == [1]
        why = json.loads(project.muster("why", found[1], "--json").stdout)
        assert [rank["rank"] for rank in why["late"]] == [1]
        said = driver.communicate(timeout=PATIENCE)[0]
    assert "slow: rank 1 on localhost was late: the others waited " in said
    result = json.loads((record.parent / "result.json").read_text())
    assert [rank["rank"] for rank in result["late"]] == [1]


@pytest.mark.soak
def test_no_rank_is_named_where_the_work_of_all_varies(project: Project) -> None:
    (project.path / "train.py").write_text(VARIES.replace("MORE", "1.0"))
    (project.path / "hosts.txt").write_text("localhost slots=3\n")
    launched = project.launch("--script", "train.py")
    assert launched.status == 0, launched.output
    assert launched.result["late"] == [], launched.output


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_each_seeded_straggler_is_named_thirty_steps_after_it_becomes_slow(
    project: Project, backend: str
) -> None:
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


@pytest.mark.soak
def test_a_cpu_quota_is_the_likely_cause_of_the_rank_that_has_it(project: Project) -> None:
    with running(project, [Phase("computes")]) as job, quota() as limit:
        job.paces()
        (limit / "cgroup.procs").write_text(str(pid_of(job.job, rank=1)))

        def named() -> list[Straggler]:
            return [one for one in job.stragglers() if "CPU quota" in one.cause]

        assert {one.rank for one in wait_until(named, "the rank with the quota")} == {1}


@contextlib.contextmanager
def quota() -> Iterator[Path]:
    """A cgroup with a twenty-fifth of a processor, for steps of a third of a second.

    Its tasks go back to the root at the end.
    """
    first, second = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    group = (first if first.is_dir() else second) / f"muster-test-{os.getpid()}"
    try:
        group.mkdir()
        if first.is_dir():
            (group / "cpu.cfs_quota_us").write_text("4000")
        else:
            (group / "cpu.max").write_text("4000 100000")
    except OSError as error:
        pytest.skip(f"cgroups cannot be made here: {error}")
    try:
        yield group
    finally:
        for task in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(task)
        group.rmdir()


def pid_of(job: str, rank: int) -> int:
    """The process of a rank: the program that its wrapper has started."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes()
            if {f"MUSTER_JOB={job}".encode(), f"RANK={rank}".encode()} <= {*environment} and (
                PROGRAM.name.encode() in words and b"rank.py" not in words and b"muster-rank" not in words
            ):
                return int(folder.name)
    raise AssertionError(f"no process of rank {rank}")
