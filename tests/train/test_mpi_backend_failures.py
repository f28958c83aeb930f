"""A rank of the MPI backend fails and the program does nothing about it: the job ends, soon, and says why."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.load import hold
from tests.train.failing_rank import TIMEOUT

if TYPE_CHECKING:
    from tests.train.conftest import Job, Launch

# In stderr mpirun's own words may end in the middle of a line, and so a rank's begin there.
# Of 40 jobs in which two ranks called MPI_Abort at once, prterun 5.0.11 itself crashed at the end of 2.
ABORTED = {1, -signal.SIGSEGV}


def fail(launch: Launch, way: str) -> tuple[Job, float]:
    """Return the job, and how long it went on after rank 1 had failed."""
    job = launch("mpirun", 2, "-m", "tests.train.failing_rank", way)
    assert f"time-out is {TIMEOUT.total_seconds():.0f} s" not in job.stderr  # nobody waited for that
    failed = re.search(r"fails at ([\d.]+)", job.stderr)
    assert failed, job.stderr
    return job, job.ended - float(failed[1])


@pytest.mark.timed
def test_an_exception_that_nobody_catches_ends_the_job(launch: Launch) -> None:
    job, seconds = fail(launch, "raises")
    assert job.status == 1
    assert "ValueError: out of paper" in job.stderr
    hold("mpi backend: an exception", seconds, 2.0)


@pytest.mark.timed
def test_a_rank_that_leaves_is_named_by_those_that_wait_for_it(launch: Launch) -> None:
    job, seconds = fail(launch, "leaves")
    assert job.status in ABORTED
    assert re.search(
        r"error: rank 0 has waited [\d.]+ s in all_reduce, number 2 of group 0: rank 1 left the group",
        job.stderr,
    )
    hold("mpi backend: a rank that leaves", seconds, 4.0)


@pytest.mark.soak  # it reads the same as one that leaves
def test_a_rank_that_destroys_its_group_early_is_named_before_the_time_out(launch: Launch) -> None:
    job, _ = fail(launch, "destroys")
    assert job.status in ABORTED
    assert re.search(r"error: rank 0 has waited .* number 2 of group 0: rank 1 left the group", job.stderr)
    assert "time-out" not in job.stderr


@pytest.mark.timed
def test_a_rank_that_does_not_come_in_time_is_named(launch: Launch) -> None:
    job, seconds = fail(launch, "dawdles")
    assert job.status in ABORTED
    said = re.search(
        r"error: rank 0 has waited ([\d.]+) s in all_reduce, .* time-out is 5 s, and rank 1 did not come",
        job.stderr,
    )
    assert said and float(said[1]) > 5, job.stderr
    hold("mpi backend: a rank that does not come, with a time-out of 5 s", seconds, 8.0)


@pytest.mark.parametrize("way", [pytest.param("misses", marks=pytest.mark.soak), "misses_early"])
def test_ranks_that_call_unlike_collectives_are_told_how(launch: Launch, way: str) -> None:
    """At the end of a short job, and during a long one; test_mpi_backend_watchdog.py has other calls."""
    job = launch("mpirun", 2, "-m", "tests.train.failing_rank", way)
    assert job.status in ABORTED
    assert (
        "error: group 0: rank 1 left the order of the others at number 6: it called all_reduce SUM float32 "
        "of 4 bytes, and rank 0 broadcast from rank 0 of 16 bytes"
    ) in job.stderr


def test_unlike_collectives_are_told_where_a_rank_has_left_since(launch: Launch) -> None:
    job = launch("mpirun", 2, "-m", "tests.train.failing_rank", "unlike_and_gone")
    assert job.status in ABORTED
    assert "error: group 0: the ranks called unlike collectives between number 1 and 2" in job.stderr


def test_a_torch_that_nobody_has_tested_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from muster.train.mpi_backend import register

    monkeypatch.setattr(torch, "__version__", "2.99.1")
    with pytest.warns(
        UserWarning, match=r"was tested with torch 2\.6, 2\.11, 2\.13, 2\.14, 2\.15, not 2\.99\.1"
    ):
        register()
