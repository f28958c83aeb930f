"""A rank that fails ends the whole job, at once, with its own status."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from train.errors import TrainError
from train.failure import report

if TYPE_CHECKING:
    from tests.train.conftest import Launch

LEAVING_RANK = str(Path(__file__).with_name("leaving_rank.py"))


@pytest.mark.parametrize("meet", [True, False], ids=["without MPI", "with MPI initialised"])
@pytest.mark.parametrize(("way", "status"), [("exception", 1), ("exit", 3)])
def test_a_rank_that_leaves_ends_an_mpirun_job(launch: Launch, way: str, status: int, meet: bool) -> None:
    job = launch("mpirun", 2, LEAVING_RANK, way, meet=meet)
    assert job.status == status, job.stderr
    assert ("RuntimeError: out of paper" in job.stderr) == (way == "exception")
    assert job.seconds < 30


def test_a_rank_that_raises_ends_a_torchrun_job(launch: Launch) -> None:
    job = launch("torchrun", 2, LEAVING_RANK, "exception")
    assert job.status == 1
    assert "RuntimeError: out of paper" in job.stderr


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (
            TrainError("no paper in the tray\nput some in"),
            2,
            "error: no paper in the tray\nerror: put some in\n",
        ),
        (SystemExit(3), 3, ""),
        (SystemExit(None), 0, ""),
        (SystemExit(0), 0, ""),
        (SystemExit("no paper"), 1, "no paper\n"),
        (KeyboardInterrupt(), 130, ""),
        (RuntimeError("out of paper"), 1, "RuntimeError: out of paper\n"),
    ],
)
def test_each_kind_of_end_has_its_status_and_its_words(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: int, says: str
) -> None:
    assert report(error) == status
    assert capsys.readouterr().err == says
