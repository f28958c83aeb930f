"""A project with modules of our names, and of torch's: neither side gets the other's."""

from __future__ import annotations

import pytest

from tests.hostile import make_hostile
from tests.launching import Project

mostly_mpirun = pytest.mark.parametrize(
    "launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.soak)]
)


# Each of its ranks spends seconds to import torch.
@mostly_mpirun
def test_our_own_program_does_not_get_the_projects(project: Project, launcher: str) -> None:
    make_hostile(project.path)
    done = project.launch("--launcher", launcher, "--np", "1", "--", "--epochs", "1", "--limit", "64")
    assert done.status == 0, done.output
    assert "accuracy=" in done.output
