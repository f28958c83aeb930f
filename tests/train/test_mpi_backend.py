"""The MPI backend on a stock torch: mpi_checks/ at three ranks, in one job, and in one in debug mode."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

if TYPE_CHECKING:
    from tests.train.conftest import Launch

CALLS = ("collectives", "layouts", "sizes", "features", "messages", "mistakes")
REST = ("store", "fake_gpu", "training", "parallel", "checkpoint", "mpi4py_example")
MODULES = (*CALLS, *REST)


def checks(*modules: str) -> list[str]:
    """The names, without an import of torch."""
    folder = Path(__file__).with_name("mpi_checks")
    trees = [ast.parse((folder / f"{module}.py").read_text()) for module in modules]
    functions = [node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if name.startswith("check_")]


@pytest.fixture(scope="module")
def outcome(launch: Launch) -> dict[str, str]:
    """What was wrong with each check: nothing, if it is empty."""
    return run(launch, *MODULES)


@pytest.fixture(scope="module")
def outcome_in_debug_mode(launch: Launch) -> dict[str, str]:
    return run(launch, *CALLS, "debug", TORCH_DISTRIBUTED_DEBUG="DETAIL")


@pytest.fixture(scope="module")
def rest_in_debug_mode(launch: Launch) -> dict[str, str]:
    return run(launch, *REST, TORCH_DISTRIBUTED_DEBUG="DETAIL")


def run(launch: Launch, *modules: str, **variables: str) -> dict[str, str]:
    job = launch("mpirun", 3, "-m", "tests.train.mpi_checks.run", *modules, **variables)
    assert job.status == 0, job.stderr
    found: dict[str, str] = json.loads(job.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("check", checks(*MODULES))
def test_on_three_ranks(outcome: dict[str, str], check: str) -> None:
    assert not outcome[check], outcome[check]


@pytest.mark.soak
@pytest.mark.parametrize("check", checks(*CALLS, "debug"))
def test_on_three_ranks_in_debug_mode(outcome_in_debug_mode: dict[str, str], check: str) -> None:
    assert not outcome_in_debug_mode[check], outcome_in_debug_mode[check]


@pytest.mark.soak
@pytest.mark.parametrize("check", checks(*REST))
def test_what_is_made_of_them_in_debug_mode(rest_in_debug_mode: dict[str, str], check: str) -> None:
    assert not rest_in_debug_mode[check], rest_in_debug_mode[check]


@pytest.mark.soak
def test_torch_compile_leaves_the_collectives_as_they_are(launch: Launch) -> None:
    assert set(run(launch, "compiled").values()) == {""}


@pytest.mark.soak
def test_train_uses_it_where_torch_has_no_mpi_built_in(launch: Launch, tmp_path: Path) -> None:
    from tests.train.forked import train_alone

    program = ("--epochs", "2", "--limit", "193", "--batch-size", "64")
    job = launch("mpirun", 3, "-m", "muster.train", *program, "--backend", "mpi")
    assert job.status == 0, job.stderr
    assert job.verdict["backend"] == "mpi"
    assert job.losses == pytest.approx(train_alone(tmp_path, *program).losses, abs=1e-5)


def test_without_mpi4py_there_is_one_plain_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from muster.train.job import backend
    from muster.train.job.failure import TrainError

    monkeypatch.setattr("torch.distributed.is_mpi_available", lambda: False)
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    with pytest.raises(TrainError, match=r"is not built into this torch .* and Muster's own needs mpi4py"):
        backend.available("mpi")


def test_an_mpi_that_cannot_start_is_one_plain_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    import torch

    from muster.train.job import join
    from muster.train.job.failure import TrainError
    from muster.train.job.ranks import Ranks

    register = Mock(side_effect=RuntimeError("cannot load MPI library"))
    monkeypatch.setattr("torch.distributed.is_mpi_available", lambda: False)
    monkeypatch.setattr("muster.train.mpi_backend.register", register)
    ranks = Ranks(0, 2, 0, 2, "spawn")
    with pytest.raises(TrainError, match=r"cannot start: cannot load MPI library\n.*--backend gloo"):
        join.join("mpi", ranks, torch.device("cpu"), timedelta(seconds=1), torch.distributed.HashStore())


def test_every_check_ran(outcome: dict[str, str]) -> None:
    assert set(outcome) == set(checks(*MODULES))


@pytest.mark.soak
def test_every_check_ran_in_debug_mode(outcome_in_debug_mode: dict[str, str]) -> None:
    assert set(outcome_in_debug_mode) == set(checks(*CALLS, "debug"))


# -- the MPI backend is a package on its own: it needs torch and mpi4py, and nothing else of ours --


FOLDER = Path(__file__).parents[2] / "train" / "mpi_backend"
ALLOWED = {*sys.stdlib_module_names, "torch", "mpi4py"}


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.name)
def test_it_imports_the_standard_library_torch_mpi4py_and_itself(path: Path) -> None:
    depth = len(path.relative_to(FOLDER).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name.split(".")[0] for alias in node.names} <= ALLOWED
        elif isinstance(node, ast.ImportFrom):
            inside = 0 < node.level <= depth
            assert inside or (node.level == 0 and (node.module or "").split(".")[0] in ALLOWED), node.module


def test_it_works_under_another_name_in_another_place(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "elsewhere")
    program = """
import sys
from datetime import timedelta
import torch, torch.distributed as dist
import elsewhere
store = dist.HashStore()
dist.init_process_group(elsewhere.register(), store=store, rank=0, world_size=1, timeout=timedelta(minutes=1))
tensor = torch.ones(3)
dist.all_reduce(tensor)
dist.destroy_process_group()
sys.exit(not torch.equal(tensor, torch.ones(3)))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- what MPI itself cannot do with tensors, and what it still does with memory --


if TYPE_CHECKING:
    from tests.train.conftest import Launch

PROGRAM = """
import gc, torch, weakref
from muster.train.mpi_backend.direct import MPI, broadcast
broadcast(MPI.COMM_WORLD, torch.empty(2**31, dtype=torch.uint8))  # which never touches its memory
print("sent")
from muster.train.mpi_backend.order import Order
from muster.train.mpi_backend.point_to_point import Messages
order, messages = Order(MPI.COMM_SELF.Dup()), Messages(MPI.COMM_SELF.Dup())
order.compare()
message = messages.receive(torch.zeros(2), 0, 1, 9.0)
written = [weakref.ref(order._sent[-1].everyone), weakref.ref(message)]
del order, messages, message
gc.collect()
print(*(each() is not None for each in written))
"""


def test_a_tensor_of_2_gib_is_broadcast_and_memory_in_use_outlives_its_group(launch: Launch) -> None:
    """A rank may leave a group before another one comes to the last comparison of their calls."""
    job = launch("mpirun", 1, "-c", PROGRAM)
    assert job.stdout == "sent\nTrue True\n", job.stderr
