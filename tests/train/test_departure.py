"""The key-value store shows who has left a loop, where a collective of torch cannot."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from torch.distributed import HashStore, Store

from muster.train.job import departure
from muster.train.job.departure import Departure
from muster.train.job.failure import TrainError

if TYPE_CHECKING:
    from tests.train.conftest import Launch

IN_DDP = """
from datetime import timedelta
import torch
from muster.train import TrainingLoop, run, synchronise
from muster.train.job import departure

departure.LOOK = 0.5

def train(job):
    model = synchronise(torch.nn.Linear(300, 300), job)
    with TrainingLoop(job, {"model": model}, log_every=0) as loop:
        for inputs in loop.batches([torch.ones(2, 300)] * 8):
            if job.rank == 1 and loop.step == 3:
                break
            model(inputs).sum().backward()

run(train, backend="mpi", timeout=timedelta(seconds=20))
"""
GLOO = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer")


def _of(store: Store, rank: int, ranks: int = 3) -> Departure:
    hosts = [f"host{number}" for number in range(ranks)]
    group: Any = SimpleNamespace(
        store=store, rank=rank, world_size=ranks, hosts=hosts, long_works=itertools.count()
    )
    return Departure(group)


@pytest.mark.parametrize("who", [0, 1])
def test_an_error_of_a_collective_names_the_first_that_has_left(who: int) -> None:
    ranks = [_of(store, rank) for store in [HashStore()] for rank in range(3)]
    for rank in ranks:
        rank.in_step(3)
    ranks[1].leave()
    with pytest.raises(TrainError, match=r"rank 1 \(host1\) has left the loop in step 3.* closed by peer"):
        ranks[who].explain(GLOO)


@pytest.mark.parametrize(
    ("left", "error"), [([], GLOO), ([1], RuntimeError("out of memory")), ([0, 1, 2], GLOO)]
)
def test_another_error_is_left_as_it_is(left: list[int], error: Exception) -> None:
    ranks = [_of(store, rank) for store in [HashStore()] for rank in range(3)]
    for rank in left:
        ranks[rank].leave()
    ranks[2].explain(error)


def test_who_has_left_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(departure, "LOOK", 0.01)
    monkeypatch.setattr(departure, "ASKED", 1e6)
    store = HashStore()
    mine, other = _of(store, 0), _of(store, 1)
    other.in_step(3)
    mine.in_step(3)
    mine.begin()
    other.leave()
    while not (said := capsys.readouterr().err):
        time.sleep(0.01)
    assert said.startswith("note: rank 1 (host1) has left the loop in step 3, and rank 0 is still in step 3")


def test_over_mpi_a_rank_that_has_left_damages_nothing_and_is_named(launch: Launch) -> None:
    job = launch("mpirun", 2, "-c", IN_DDP)
    assert "has left the loop in step 3, and rank 0 is still in step 3" in job.stderr
    assert "the time-out is 20 s" in job.stderr
