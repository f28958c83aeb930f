"""The uses of MPI, and the starts of own ranks, in the source of a program; the notes of the plan on them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from muster.deploy.plan.program import Program
from muster.deploy.plan.program_source import line_of_mpi, line_of_own_ranks, with_uses
from muster.deploy.plan.source_tree import Tree
from tests.unit.plans import make_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
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
]


@pytest.mark.parametrize(("source", "line"), [*ASKS.items(), *((source, None) for source in DOES_NOT)])
def test_the_first_line_that_asks_for_mpi_is_found(source: str, line: int | None) -> None:
    assert line_of_mpi(ast.parse(source)) == line


def test_scripts_modules_and_packages_are_read_where_the_user_stands(tmp_path: Path) -> None:
    (tmp_path / "below" / "package").mkdir(parents=True)
    for name in ("train.py", "package/__main__.py"):
        (tmp_path / "below" / name).write_text("\nimport mpi4py\n")
    tree = Tree(tmp_path, "below", ())
    (tmp_path / "below" / "run.sh").write_text("echo $(import mpi4py")
    assert with_uses(Program(script="train.py"), tree).mpi == "train.py:2"
    assert with_uses(Program(module="package"), tree).mpi == "package/__main__.py:2"
    for other in (Program(module="of.elsewhere"), Program(script="run.sh")):
        assert with_uses(other, tree) == other


@pytest.mark.parametrize(
    ("launcher", "slots", "warned"), [("torchrun", 2, True), ("torchrun", 1, False), ("mpirun", 2, False)]
)
def test_the_plan_warns_of_mpi_under_torchrun(launcher: str, slots: int, warned: bool) -> None:
    program = Program(script="train.py", mpi="train.py:2")
    made = make_plan(f"node1 slots={slots}", launcher=launcher, program=program)
    assert ("note: train.py:2 uses MPI, but torchrun starts no MPI ranks" in str(made)) is warned
    assert "docs/mpi-backend.md" not in str(made)


def test_a_program_that_asks_torch_for_mpi_is_shown_the_backend_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("dist.init_process_group('mpi')\n")
    program = with_uses(Program(script="train.py"), Tree(tmp_path, ".", ()))
    note = str(make_plan("node1 slots=2", launcher="torchrun", program=program))
    assert "use --launcher mpirun; torch's wheels have no backend mpi, Muster has one: docs/mpi-" in note


SPAWN = """
import torch.distributed as dist
import torch.multiprocessing as mp
def setup(rank, size): dist.init_process_group("gloo", rank=rank, world_size=size)
def worker(rank, size): setup(rank, size)
"""
MAIN = f"{SPAWN}def main(args): mp.spawn(worker, args=(2,), nprocs=2)\n"
PROCESSES = f"{SPAWN}made = [mp.Process(target=worker, args=(rank, 2)) for rank in range(2)]\n"
# The form of PyTorch's tutorial on DDP.
PASSED_ON = f"""{SPAWN}
def run_demo(demo, size):
    mp.spawn(demo, args=(size,), nprocs=size, join=True)
if __name__ == "__main__":
    run_demo(worker, 2)
"""
IN_A_CLASS = """
class Trainer:
    def __init__(self, rank): self.begin(rank)
    def begin(self, rank): init_process_group(rank=rank)
def worker(rank): Trainer(rank)
def main(): get_context("spawn").Process(target=partial(worker, 1)).start()
main()
"""


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (f"{MAIN}main(None)", 6),
        (f"{MAIN}if __name__ == '__main__':\n    main(None)", 6),
        (PROCESSES, 6),
        (PASSED_ON, 8),
        (IN_A_CLASS, 6),
        (f"{SPAWN}for rank in range(2):\n    mp.Process(target=worker, args=(rank, 2)).start()", 7),
        (f"{SPAWN}mp.start_processes(worker, args=(2,), nprocs=2)", 6),
    ],
)
def test_a_start_of_own_ranks_is_found(source: str, line: int) -> None:
    assert line_of_own_ranks(ast.parse(source)) == line


@pytest.mark.parametrize(
    "source",
    [
        SPAWN,
        MAIN,  # main is called from elsewhere, if at all
        f"{MAIN}worker(0, 1)",
        # torchrun's ranks join, and a start without torchrun spawns: examples/imagenet of PyTorch is such.
        f"{MAIN}worker(0, 1) if 'RANK' in os.environ else main(None)",
        f"{SPAWN}def load(): pass\nsetup(0, 1)\nmp.Process(target=load).start()",
        f"{SPAWN}def load(): pass\nmp.Process(target=load).start()\nTrainer().fit()",
        "def load(): pass\nmp.Process(target=load).start()",
        "parser.add_argument('--spawn')\nrun(train, spawn=2)",
    ],
)
def test_a_program_whose_ranks_the_launcher_starts_is_none(source: str) -> None:
    assert line_of_own_ranks(ast.parse(source)) is None


@pytest.mark.parametrize("example", [*EXAMPLES.glob("*.py")], ids=lambda path: path.stem)
def test_no_example_of_muster_starts_its_own_ranks(example: Path) -> None:
    assert line_of_own_ranks(ast.parse(example.read_text())) is None


@pytest.mark.parametrize(
    ("launcher", "slots", "advice"),
    [
        ("mpirun", 2, "each of the 4 ranks would start them again; use --np 1"),
        ("torchrun", 2, "each of the 4 ranks would start them again; use --np 1 --launcher mpirun"),
        ("mpirun", 1, ""),
        ("torchrun", 1, ""),
    ],
)
def test_the_plan_warns_of_ranks_that_start_ranks(launcher: str, slots: int, advice: str) -> None:
    program = Program(script="train.py", own_ranks="train.py:31")
    hosts = "node[1-2] slots=2" if slots == 2 else "node1 slots=1"
    made = make_plan(hosts, launcher=launcher, program=program)
    note = f"note: train.py:31 starts its own ranks, and {advice}\n"
    assert note in str(made) if advice else "own ranks" not in str(made)


@pytest.mark.parametrize(("own_ranks", "changed"), [("train.py:31", True), ("", False)])
def test_such_a_program_does_not_look_for_the_store_of_torchrun(own_ranks: str, changed: bool) -> None:
    """Its rank 0 opens the store itself. With this variable of torchrun, all its ranks would wait for it."""
    program = Program(script="train.py", own_ranks=own_ranks)
    for launcher in ("torchrun", "mpirun"):
        env = make_plan("node1 slots=1", launcher=launcher, program=program).hosts[0].env
        there = {"TORCHELASTIC_USE_AGENT_STORE": "False"} if changed and launcher == "torchrun" else {}
        assert {name: env[name] for name in env if name.startswith("TORCHELASTIC")} == there
