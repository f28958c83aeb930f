"""The same training, whoever starts the ranks and however many there are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.train.forked import Alone, train_alone

if TYPE_CHECKING:
    from tests.train.conftest import Launch

# 193 = 3 * 64 + 1: nothing divides, and of the last batch, one digit, all ranks but the first have none.
SHORT = ("--epochs", "6", "--limit", "193", "--batch-size", "64")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return train_alone(tmp_path_factory.mktemp("alone"), *SHORT)


@pytest.mark.parametrize(
    ("launcher", "ranks", "meet"),
    [
        ("mpirun", 2, True),  # at MASTER_ADDR
        pytest.param("mpirun", 3, False, marks=pytest.mark.soak),  # where MPI says
        pytest.param("torchrun", 2, False, marks=pytest.mark.soak),
        pytest.param("spawn", 2, False, marks=pytest.mark.soak),
    ],
)
def test_the_curve_is_the_same(launch: Launch, alone: Alone, launcher: str, ranks: int, meet: bool) -> None:
    more = ("--spawn", str(ranks)) if launcher == "spawn" else ()
    job = launch(launcher, ranks, "-m", "muster.train", *SHORT, *more, meet=meet)
    assert job.status == 0, job.stderr
    lines = job.stdout.splitlines()
    assert lines[0] == (
        f"{ranks} ranks on 1 host, backend gloo, launched by {launcher}, "
        "global batch 64, 193 training and 360 held-out digits"
    )
    assert len(lines) == 1 + 6 + 1
    said = rf"accuracy=0\.\d{{4}} ranks={ranks} hosts=1 backend=gloo launcher={launcher} seconds=\d+\.\d"
    assert re.fullmatch(said, lines[-1])
    assert len(job.losses) == 6
    assert job.losses == pytest.approx(alone.losses, abs=1e-5)
    assert job.verdict["accuracy"] == f"{alone.accuracy:.4f}"
