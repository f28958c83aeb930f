"""Batch jobs of a real Slurm: `--detach`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.slurm import FOLDER, WAITS, Slurm, slurm_cluster
from tests.load import hold
from tests.parallel import NUMBER
from tests.waiting import wait_until

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def made(node_image: None) -> Iterator[Slurm]:
    with slurm_cluster(f"muster-slurm-test{NUMBER or ''}", program=WAITS) as slurm:
        yield slurm


@pytest.fixture
def slurm(made: Slurm) -> Slurm:
    made.until_idle()
    return made


def state(slurm: Slurm, job: str) -> dict[str, Any]:
    done = slurm.run("muster", "status", "--json", job)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    return dict(found)


def test_a_batch_job_waits_runs_and_is_stopped_by_its_id(slurm: Slurm) -> None:
    job, number = slurm.submit("-N 3 -n 3 --hold", "wait")
    waiting = state(slurm, job)
    assert (waiting["state"], waiting["why"]) == ("waiting", f"Slurm's job {number}: PENDING (JobHeldUser)")
    slurm.run("scontrol", "release", number)
    slurm.until_printed(job, "begins", 3)
    running = state(slurm, job)
    assert (running["state"], running["hosts"]) == ("running", ["slurm1", "slurm2", "slurm3"])
    stopped = slurm.run("muster", "stop", job)
    assert re.search(rf"{job} stopped by muster stop, by muster on slurm1", stopped.stdout), stopped
    wait_until(lambda: not slurm.left(), "the end of all processes of the job")


@pytest.mark.parametrize("words", [(), ("-f",)], ids=["scancel", "scancel -f"])
def test_scancel_of_a_batch_job_leaves_nothing(slurm: Slurm, words: tuple[str, ...]) -> None:
    job, number = slurm.submit("-N 2 -n 4 -w slurm2,slurm3", "wait")
    slurm.until_printed(job, "begins", 4)
    slurm.run("scancel", *words, number)
    status, output = slurm.attached(job)
    assert f"STOPPED by scancel (Slurm's job {number})" in output
    assert status == 143
    wait_until(lambda: not slurm.left(), "the end of all processes of the job")
    assert slurm.run("ls", f"{FOLDER}/runs/{job}").stdout.count("batch") == 0


def test_a_job_that_has_saved_is_queued_again_and_goes_on(slurm: Slurm) -> None:
    job, number = slurm.submit("-N 2 -n 2 --requeue", "save")
    slurm.until_printed(job, "restart 0 begins", 2)
    slurm.run("scancel", "--batch", "--signal=USR1", number)  # as Slurm does before the time limit
    slurm.until_printed(job, "restart 1 goes on", 2)
    status, output = slurm.attached(job)
    assert (status, "DONE    2 ranks on 2 hosts" in output) == (0, True), output
    assert state(slurm, job)["attempt"] == 1


def test_the_death_of_the_drivers_node_is_named_soon_after_slurm_knows(slurm: Slurm) -> None:
    job, number = slurm.submit("-N 2 --ntasks-per-node=1 -w slurm2,slurm3", "wait")
    slurm.until_printed(job, "begins", 2)
    try:
        slurm.compose("kill", "slurm2")
        wait_until(
            lambda: "NODE_FAIL" in slurm.run("scontrol", "show", "job", number).stdout, "Slurm's own word"
        )
        known = time.monotonic()
        wait_until(lambda: state(slurm, job)["state"] == "lost", "the end of the job")
        hold("until NODE_FAIL was named", time.monotonic() - known, 15.0)
        assert f"Slurm ended the allocation {number}: NODE_FAIL" in state(slurm, job)["why"]
        wait_until(lambda: not slurm.left(("slurm1", "slurm3")), "the end of all processes of the job")
    finally:
        slurm.compose("up", "--detach")
        slurm.until_idle()
