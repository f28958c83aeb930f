"""Ranks with unequally many batches, and ranks that do different things, which is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # which a first backward of DDP imports: once here, not in every forked rank
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from muster.train import Job, TrainError, TrainingLoop, synchronise
from tests.train.forked import on_hosts

ROWS = 2  # of a batch
SHARDS = [[1.0] * 6, [2.0] * 10, [3.0] * 8]  # the samples of each rank: 3, 5 and 4 batches


class Shard(IterableDataset[Any]):
    def __init__(self, samples: list[float]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        yield from (torch.tensor([each]) for each in self.samples)


class WithLength(Shard):
    """A data set whose length nobody should believe."""

    def __len__(self) -> int:
        return 99


LOADERS: dict[str, Callable[[list[float]], Iterable[torch.Tensor]]] = {
    "iterable": lambda shard: DataLoader(Shard(shard), batch_size=ROWS),
    "wrong length": lambda shard: DataLoader(WithLength(shard), batch_size=ROWS),
    "generator": lambda shard: iter(torch.split(torch.tensor(shard)[:, None], ROWS)),
    "map": lambda shard: DataLoader(torch.tensor(shard)[:, None], batch_size=ROWS),  # type: ignore[arg-type]
    "list": lambda shard: list(torch.split(torch.tensor(shard)[:, None], ROWS)),
}


def _means(kind: str, uneven: Any, out: Path, job: Job) -> list[float]:
    """Return the loss of each step: the mean of all inputs of the step."""
    model = synchronise(nn.Linear(1, 1, bias=False), job)
    torch.nn.init.ones_(model.module.weight)
    means = []
    with TrainingLoop(replace(job, out=out), {"model": model}, log_every=0) as loop:
        for inputs in loop.batches(LOADERS[kind](SHARDS[job.rank]), uneven=uneven):
            loss = job.global_mean(model(inputs))
            torch.autograd.backward(loss)
            means.append(round(float(loss), 6))
    assert loop.epoch == 1
    return means


@pytest.mark.parametrize("kind", LOADERS)
def test_an_epoch_ends_with_the_shortest_shard_or_after_the_longest(tmp_path: Path, kind: str) -> None:
    shortest = on_hosts(tmp_path, 3, partial(_means, kind, "shortest", tmp_path / "short"))
    assert shortest == [[2.0, 2.0, 2.0]] * 3
    longest = on_hosts(tmp_path, 3, partial(_means, kind, "longest", tmp_path / "long"))
    assert longest == [[2.0, 2.0, 2.0, 2.5, 2.0]] * 3


def _said(where: str, length: bool, out: Path, job: Job) -> str:
    """Have rank 1 do something else in step 3; returns the error of this rank."""
    model = synchronise(nn.Linear(1, 1), job)
    batches = [torch.ones(1, 1)] * 6
    with (
        pytest.raises(TrainError) as caught,
        TrainingLoop(replace(job, out=out), {"model": model}, log_every=0) as loop,
    ):
        for inputs in loop.batches(batches if length else iter(batches)):
            alone = job.rank == 1 and loop.step == 3
            if alone and where == "before":
                break
            loss = job.global_mean(model(inputs))
            torch.autograd.backward(loss)
            if alone and where == "after":
                break
            if alone and where == "saves":
                loop.save()
            if alone and where == "gathers":
                job.all_gather(1, int, what="mine")
            elif loop.step == 3 and where == "gathers":
                job.all_gather(2, int, what="theirs")
    return str(caught.value)


@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("before", "rank 1 (host1) has left the loop, step 3"),
        ("after", "rank 1 (host1) has left the loop, step 3"),
        ("saves", "rank 1 (host1) saves or checks for inf and nan (save, check_finite), step 3"),
        ("gathers", "rank 1 (host1) exchanges 'mine'"),
    ],
)
def test_a_rank_apart_is_named_by_all(tmp_path: Path, where: str, says: str, length: bool) -> None:
    said = on_hosts(tmp_path, 2, partial(_said, where, length, tmp_path / "out"))
    assert all("the ranks do different things" in text and says in text for text in said), said


def test_a_loader_that_ends_before_its_length_is_an_error(tmp_path: Path) -> None:
    class Short(list[Any]):
        def __len__(self) -> int:
            return 3

    def run(job: Job) -> str:
        with (
            pytest.raises(TrainError) as caught,
            TrainingLoop(replace(job, out=tmp_path / "out"), {}, log_every=0) as loop,
        ):
            for _ in loop.batches(Short([1, 2])):
                pass
        return str(caught.value)

    assert set(on_hosts(tmp_path, 2, run)) == {"the loader gave 2 batches, and its len() promised 3"}
