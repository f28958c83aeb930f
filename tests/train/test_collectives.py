"""The tour of the collective operations: right answers, wrong ones, and what a backend refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from benchmarks.tools import measure, operations
from benchmarks.tools.collectives import show
from benchmarks.tools.operations import OPERATIONS, Operation, Pairs, World
from muster.deploy.features.bench.programs import outcomes
from muster.deploy.features.bench.programs.tool import ToolConfig
from tests.train.forked import on_hosts

if TYPE_CHECKING:
    from muster.train.job.group import Job
    from tests.train.conftest import Launch

NAMES = {operation.name for operation in OPERATIONS}


@pytest.mark.parametrize("ranks", [*(pytest.param(ranks, marks=pytest.mark.soak) for ranks in (1, 2)), 3])
def test_every_answer_of_gloo_is_right(tmp_path: Path, capfd: pytest.CaptureFixture[str], ranks: int) -> None:
    statuses = on_hosts(tmp_path, ranks, lambda group: show(group, ToolConfig(json=True)))
    assert statuses == [0] * ranks
    told = json.loads(capfd.readouterr().out)
    assert (told["ranks"], told["backend"]) == (ranks, "gloo")
    assert {row["name"] for row in told["operations"]} == NAMES
    # All of them since torch 2.7; docs/train-tools.md has what torch 2.6 refuses.
    assert {row["name"]: row["outcome"] for row in told["operations"]} == dict.fromkeys(NAMES, "right")


def test_a_wrong_answer_is_named_and_is_a_failure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_nearly_reduced(tensor: torch.Tensor, op: object = None) -> None:
        if dist.get_rank() == 1:
            tensor += 1

    monkeypatch.setattr(dist, "all_reduce", only_nearly_reduced)
    statuses = on_hosts(tmp_path, 2, lambda group: show(group, ToolConfig()))
    assert statuses == [1, 1]
    (line,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("all_reduce SUM")]
    assert line.split()[2] == "wrong"


def _refuse(world: World) -> Pairs:
    if world.rank in {0, 1}:
        raise RuntimeError("[enforce fail at somewhere.cc:7] no such thing\nand a stack")
    return []


@pytest.mark.parametrize(("ranks", "expected"), [(2, outcomes.REFUSED), (3, outcomes.BROKEN)])
def test_refused_by_all_is_lacking_and_by_some_is_broken(tmp_path: Path, ranks: int, expected: str) -> None:
    def run(group: Job) -> tuple[str, str]:
        world = World(group.rank, group.world_size, group.device, torch.float32)
        return outcomes.together(group.all_gather(measure.run(Operation("odd", "", _refuse), world)))

    for found, said in on_hosts(tmp_path, ranks, run):
        assert found == expected
        assert said.endswith("no such thing")


def test_a_barrier_that_does_not_wait_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (barrier,) = [operation for operation in OPERATIONS if operation.name == "barrier"]
    monkeypatch.setattr(dist, "barrier", lambda: None)
    # A clock that only moves while a rank sleeps: who is late by another one may be so for having no core.
    now = [1.0]
    monkeypatch.setattr(operations, "time", Mock(sleep=now.append, time=lambda: sum(now)))

    def run(group: Job) -> str:
        return measure.run(barrier, World(group.rank, 2, group.device, torch.float32))[0]

    assert on_hosts(tmp_path, 2, run) == [outcomes.WRONG, outcomes.RIGHT]


@pytest.mark.soak  # mpi_checks/ has each operation
def test_it_runs_under_mpirun_with_the_mpi_backend(launch: Launch) -> None:
    job = launch("mpirun", 3, "-m", "benchmarks.tools.collectives", "--backend", "mpi")
    assert job.status == 0, job.stdout + job.stderr
    lines = job.stdout.splitlines()
    assert lines[0] == "3 ranks on 1 host, backend mpi, launched by mpirun"
    assert lines[-1].split(",")[0] == f"{len(OPERATIONS)} right"
