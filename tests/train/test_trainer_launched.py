"""What test_trainer.py demands of one process, at two and three ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.train.conftest import Launch

TESTS = str(Path(__file__).with_name("test_trainer.py"))


@pytest.mark.parametrize(("launcher", "ranks"), [("mpirun", 2), ("torchrun", 3)])
def test_a_users_own_training_at_this_many_ranks(launch: Launch, launcher: str, ranks: int) -> None:
    job = launch(launcher, ranks, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS)
    assert job.status == 0, job.stdout + job.stderr
    assert job.stdout.count(" passed") == ranks  # each rank is a pytest
