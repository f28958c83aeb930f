"""The programs of examples/, under every launcher: the same loss at any number of ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.train.conftest import Job, Launch

EXAMPLES = Path(__file__).parents[2] / "examples"
MINIMAL = str(EXAMPLES / "minimal.py")


def losses(job: Job, ranks: int) -> list[float]:
    """The losses that minimal.py printed, epoch by epoch."""
    assert job.status == 0, job.stdout + job.stderr
    printed = re.findall(rf"{ranks} ranks: epoch \d, loss (\S+)", job.stdout)
    assert len(printed) == 5
    return [float(loss) for loss in printed]


@pytest.fixture(scope="module")
def alone(launch: Launch) -> list[float]:
    return losses(launch("single", 1, MINIMAL), 1)


@pytest.mark.parametrize(("launcher", "ranks"), [("mpirun", 2), ("torchrun", 3), ("spawn", 2)])
def test_the_minimal_example_has_the_same_loss_under_every_launcher(
    launch: Launch, alone: list[float], launcher: str, ranks: int
) -> None:
    more = ("--spawn", str(ranks)) if launcher == "spawn" else ()
    assert losses(launch(launcher, ranks, MINIMAL, *more), ranks) == pytest.approx(alone, abs=1e-5)
    assert alone[-1] < alone[0] / 2


def test_the_minimal_example_fits_on_a_screen() -> None:
    assert len(Path(MINIMAL).read_text().splitlines()) <= 30
