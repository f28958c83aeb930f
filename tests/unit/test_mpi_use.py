"""What a program's own source says of MPI, and what the plan says of that."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.deploy.plan.program import Program, line_of_mpi, mpi_use
from muster.deploy.plan.source_tree import Tree
from tests.unit.plans import make_plan

ASKS = {
    "import mpi4py": 1,
    "import os\nfrom mpi4py import MPI": 2,
    "def main():\n    import mpi4py.futures": 2,
    "import torch.distributed as dist\ndist.init_process_group('mpi')": 2,
    "init_process_group(\n    backend='mpi')": 1,
}
DOES_NOT = [
    "# import mpi4py",
    "from .mpi4py import own",
    "dist.init_process_group('gloo')",
    "dist.init_process_group(backend)",
    "print('mpi')",
    "this is no Python",
]


@pytest.mark.parametrize(("source", "line"), [*ASKS.items(), *((source, None) for source in DOES_NOT)])
def test_the_first_line_that_asks_for_mpi_is_found(source: str, line: int | None) -> None:
    assert line_of_mpi(source) == line


def test_scripts_modules_and_packages_are_read_where_the_user_stands(tmp_path: Path) -> None:
    (tmp_path / "below" / "package").mkdir(parents=True)
    for name in ("train.py", "package/__main__.py"):
        (tmp_path / "below" / name).write_text("\nimport mpi4py\n")
    tree = Tree(tmp_path, "below", ())
    assert mpi_use(Program(script="train.py"), tree) == "train.py:2"
    assert mpi_use(Program(module="package"), tree) == "package/__main__.py:2"
    assert mpi_use(Program(module="of.elsewhere"), tree) == ""


@pytest.mark.parametrize(
    ("launcher", "slots", "warned"), [("torchrun", 2, True), ("torchrun", 1, False), ("mpirun", 2, False)]
)
def test_the_plan_warns_of_mpi_under_torchrun(launcher: str, slots: int, warned: bool) -> None:
    program = Program(script="train.py", mpi="train.py:2")
    made = make_plan(f"node1 slots={slots}", launcher=launcher, program=program)
    assert ("note: train.py:2 uses MPI, but torchrun starts no MPI ranks" in str(made)) is warned
