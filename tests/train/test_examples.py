"""The programs of examples/: the same loss at any number of ranks, under more than one launcher."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.train.forked import run_script

if TYPE_CHECKING:
    from tests.train.conftest import Launch

EXAMPLES = Path(__file__).parents[2] / "examples"
MINIMAL = str(EXAMPLES / "minimal.py")
soak = pytest.mark.soak


def losses(output: str, ranks: int) -> list[float]:
    """The losses that minimal.py printed, epoch by epoch."""
    printed = re.findall(rf"{ranks} ranks: epoch \d, loss (\S+)", output)
    assert len(printed) == 5, output
    return [float(loss) for loss in printed]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    (printed,) = run_script(Path(MINIMAL), 1, out=tmp_path_factory.mktemp("alone"))
    return losses(printed, 1)


def test_minimal_has_the_same_loss_on_one_rank_and_three(tmp_path: Path, alone: list[float]) -> None:
    printed, *_ = run_script(Path(MINIMAL), 3, out=tmp_path)
    assert losses(printed, 3) == pytest.approx(alone, abs=1e-5)
    assert alone[-1] < alone[0] / 2


@soak
def test_the_minimal_example_has_the_same_loss_under_mpirun(launch: Launch, alone: list[float]) -> None:
    """Under torchrun on three hosts: tests/cluster/test_cluster_examples.py."""
    assert losses(run(launch, "mpirun", 3, "minimal.py"), 3) == pytest.approx(alone, abs=1e-5)


def test_the_minimal_example_fits_on_a_screen() -> None:
    assert len(Path(MINIMAL).read_text().splitlines()) <= 30


@pytest.mark.parametrize("argument", [pytest.param("--local-rank=0", marks=soak), "--local_rank=0"])
def test_an_example_ignores_the_argument_of_torch_launch(tmp_path: Path, argument: str) -> None:
    """torch 2 adds the first form, torch 1 the second; LOCAL_RANK has the same number under both."""
    (printed,) = run_script(Path(MINIMAL), 1, argument, out=tmp_path)
    assert "1 ranks: epoch 4, loss" in printed


def run(launch: Launch, launcher: str, ranks: int, name: str) -> str:
    """Run an example; returns what its ranks printed."""
    more = ("--spawn", str(ranks)) if launcher == "spawn" else ()
    job = launch(launcher, ranks, str(EXAMPLES / name), *more)
    assert job.status == 0, job.stdout + job.stderr
    return job.stdout


def test_sums_that_travel_while_a_rank_computes_are_right(tmp_path: Path) -> None:
    printed, *_ = run_script(EXAMPLES / "async_all_reduce.py", 2, out=tmp_path)
    assert re.findall(r"(\w+): \d+ ms, (\w+)", printed) == [
        ("one_at_a_time", "right"),
        ("while_computing", "right"),
    ]


@soak
@pytest.mark.parametrize("launcher", ["spawn", "mpirun"])
def test_messages_go_round_a_ring_and_through_a_pipeline(launch: Launch, launcher: str) -> None:
    printed = run(launch, launcher, 2, "point_to_point.py")
    assert "ring: [1.0, 3.0, 5.0, 7.0], all_reduce: [1.0, 3.0, 5.0, 7.0]" in printed
    assert "pipeline: [4.0, 8.0, 12.0, 16.0]" in printed  # 1, 2, 3 and 4, doubled on each of two ranks


def test_a_ring_of_three_ranks_passes_on_what_arrives(tmp_path: Path) -> None:
    printed = run_script(EXAMPLES / "point_to_point.py", 3, out=tmp_path)
    assert "ring: [3.0, 6.0, 9.0, 12.0], all_reduce: [3.0, 6.0, 9.0, 12.0]" in printed[0]
    assert "pipeline: [8.0, 16.0, 24.0, 32.0]" in printed[2]


@soak
@pytest.mark.parametrize(("launcher", "ranks"), [("single", 1), ("mpirun", 2), ("mpirun", 3)])
def test_gradients_that_mpi4py_adds_are_those_of_ddp(launch: Launch, launcher: str, ranks: int) -> None:
    """At any number of ranks: 96 samples of a batch divide among them. mpi_checks/ has the harder cases."""
    printed = run(launch, launcher, ranks, "mpi4py_allreduce.py")
    losses = {way: float(loss) for way, loss in re.findall(r"(.*): loss (\S+), \S+ ms a step", printed)}
    after, during, half, ddp = losses.values()
    assert after == pytest.approx(ddp, abs=2e-6)
    assert during == pytest.approx(ddp, abs=2e-6)
    assert half == pytest.approx(ddp, abs=1e-2)
    assert ddp < 0.2  # of an untrained model: 0.5


@soak
def test_mpi4py_without_mpirun_is_refused(launch: Launch) -> None:
    job = launch("torchrun", 2, str(EXAMPLES / "mpi4py_allreduce.py"))
    assert job.status != 0
    assert "communication over MPI needs the ranks started by the mpirun" in job.stdout + job.stderr


def test_a_parameter_server_learns_from_every_worker(tmp_path: Path) -> None:
    """On three hosts: tests/cluster/test_cluster_examples.py."""
    learned("".join(run_script(EXAMPLES / "parameter_server.py", 2, out=tmp_path)), workers=1)


@soak
@pytest.mark.parametrize("launcher", ["mpirun", "spawn"])
def test_a_parameter_server_learns_under_a_launcher(launch: Launch, launcher: str) -> None:
    learned(run(launch, launcher, 2, "parameter_server.py"), workers=1)


@soak
def test_a_parameter_server_with_no_worker_says_so(launch: Launch) -> None:
    job = launch("single", 1, str(EXAMPLES / "parameter_server.py"))
    assert "a parameter server needs at least 2 ranks" in job.stderr


def learned(printed: str, workers: int) -> None:
    """An untrained model has a loss of about 0.5."""
    (found,) = re.findall(rf"{150 * workers} updates by {workers} workers, loss (\S+)", printed)
    assert float(found) < 0.2
