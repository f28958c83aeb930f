"""A project with modules of our names, and of torch's: neither side gets the other's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.hostile import make_hostile
from tests.launching import FAB, Project

mostly_mpirun = pytest.mark.parametrize(
    "launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.soak)]
)


@mostly_mpirun  # test_wheel.py has both
def test_the_program_gets_its_own_modules_and_the_launcher_none_of_them(
    project: Project, launcher: str
) -> None:
    make_hostile(project.path)
    fab = replace(project, program=FAB)  # which puts the project's folder first in its own path
    done = fab.launch("--launcher", launcher, "train.py", "--epochs", "3")
    assert done.status == 0, done.output
    for rank in (0, 1):
        log = (done.folder / "logs" / f"rank-{rank:04d}@localhost.out").read_text()
        assert log.splitlines() == [f"{rank} True", "library ../lib/muster/train/__init__.py"]


# Each of its ranks spends seconds to import torch.
@mostly_mpirun
def test_our_own_program_does_not_get_the_projects(project: Project, launcher: str) -> None:
    make_hostile(project.path)
    done = project.launch("--launcher", launcher, "--np", "1", "--", "--epochs", "1", "--limit", "64")
    assert done.status == 0, done.output
    assert "accuracy=" in done.output
