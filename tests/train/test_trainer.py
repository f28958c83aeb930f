"""A user's own model, loss, optimizer and data, at any number of ranks.

    pytest tests/train/test_trainer.py
    mpirun -n 2 pytest tests/train/test_trainer.py

Every rank runs every test, in the same order, so each test may use collectives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from muster.train.demo.datasets.samples import Samples
from muster.train.demo.trainer import Trainer
from muster.train.job.failure import TrainError
from muster.train.job.group import Group, process_group
from muster.train.job.ranks import Ranks
from muster.train.replicas import synchronise
from tests.train.epochs import run_epoch

RANKS = Ranks.from_env(os.environ)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    with process_group(RANKS, timeout=timedelta(seconds=180)) as joined:
        yield joined


def _numbers(count: int = 33) -> Samples:
    """33 = 2 * 16 + 1: nothing divides, and of the last batch all ranks but the first have no sample."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(count, 4, generator=generator)
    return Samples(inputs, inputs.sum(1, keepdim=True))


def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return mse_loss(outputs, targets, reduction="none").mean(dim=1)


def _trainer(
    group: Group, model: nn.Module, sync: str = "ddp", lr: float = 0.01, clip: float = 0.0
) -> Trainer:
    return Trainer(
        model,
        squared_error,
        torch.optim.AdamW,
        _numbers(),
        group=group,
        optimizer_options={"lr": lr},
        sync=sync,
        batch_size=16,
        clip=clip,
    )


def _network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def test_a_users_own_training_is_that_of_one_process(group: Group) -> None:
    trainer, data, model = _trainer(group, _network()), _numbers(), _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(2):
        sampler = Trainer(
            _network(), squared_error, torch.optim.SGD, data, group=group, batch_size=16
        ).batch_sampler
        sampler.rank, sampler.world_size = 0, 1
        sampler.set_epoch(epoch)
        total = 0.0
        for share in sampler.shares():
            inputs, targets = data.batch(share.indices)
            loss = mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            total += loss.item() * len(inputs)
        assert run_epoch(trainer, epoch) == pytest.approx(total / len(data), abs=1e-5)


def test_a_loss_that_is_not_per_sample_is_refused(group: Group) -> None:
    trainer = Trainer(
        _network(), mse_loss, torch.optim.SGD, _numbers(), group=group, optimizer_options={"lr": 0.1}
    )
    with pytest.raises(TrainError, match="one number for each of"):
        run_epoch(trainer)


def test_an_evaluation_changes_nothing_and_is_the_same_each_time(group: Group) -> None:
    torch.manual_seed(2)
    frozen = nn.BatchNorm1d(4).eval()
    model = nn.Sequential(frozen, nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    trainer = _trainer(group, model)
    trainer.data = _numbers(16 * group.world_size)  # each rank has more than one sample, as a BatchNorm needs
    trainer.batch_sampler.samples, trainer.batch_sampler.batch_size = len(trainer.data), 8 * group.world_size
    run_epoch(trainer)
    held_out = _numbers(11)
    first = trainer.evaluate(held_out, squared_error)
    before = [buffer.clone() for buffer in model.buffers()]
    assert [trainer.evaluate(held_out, squared_error, batch_size=4) for _ in range(2)] == pytest.approx(
        [first, first], rel=1e-6
    )
    assert all(torch.equal(now, then) for now, then in zip(model.buffers(), before, strict=True))
    assert model[2].training
    assert not frozen.training


def test_every_rank_evaluates_with_the_same_buffers(group: Group) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    trainer = _trainer(group, model)
    model.train()
    own = torch.full((4, 4), float(group.rank))
    trainer.model(own)
    assert (
        len({str(one) for one in group.all_gather(model[1].get_buffer("running_mean").tolist())})
        == group.world_size
    )
    trainer.evaluate(_numbers(), squared_error)
    assert len({str(one) for one in group.all_gather(model[1].get_buffer("running_mean").tolist())}) == 1


def test_a_part_without_samples_leaves_the_statistics_of_a_batch_norm_alone(group: Group) -> None:
    """The model runs on a sample that stands in for them, because all ranks must take part."""
    torch.manual_seed(7)
    norm = nn.BatchNorm1d(1, momentum=None)  # the mean of what it saw
    model = nn.Sequential(nn.Unflatten(1, (1, 4)), norm, nn.Flatten(), nn.Linear(4, 1))
    trainer = _trainer(group, model)
    trainer.data = _numbers(4 * group.world_size)
    trainer.batch_sampler.samples = trainer.batch_sampler.batch_size = len(trainer.data)
    trainer.accumulate = 6  # of a share of 4 samples, two parts are empty
    run_epoch(trainer)
    assert int(norm.get_buffer("num_batches_tracked")) == 4
    if group.world_size == 1:
        inputs, _ = trainer.data.batch(torch.arange(4))
        assert torch.allclose(norm.get_buffer("running_mean"), inputs.mean())
    assert norm.training


def test_a_sync_batch_norm_without_samples_says_what_helps(group: Group) -> None:
    """Its statistics would have a sample that is not in the batch, on every rank."""
    trainer = _trainer(group, nn.Sequential(nn.Linear(4, 8), nn.SyncBatchNorm(8), nn.Linear(8, 1)), "none")
    empty = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(TrainError, match="no sample of a part of a batch, and a SyncBatchNorm would"):
        trainer._backward(empty, 4)


def test_a_batch_norm_that_gets_one_sample_says_what_helps(group: Group) -> None:
    """65 samples in batches of 64: the last batch has one, on rank 0."""

    def trainer(*, drop_last: bool) -> Trainer:
        return Trainer(
            nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)),
            squared_error,
            torch.optim.SGD,
            _numbers(64 * group.world_size + 1),
            group=group,
            optimizer_options={"lr": 0.01},
            batch_size=64 * group.world_size,
            drop_last=drop_last,
        )

    assert run_epoch(trainer(drop_last=True)) > 0
    if group.world_size == 1:  # else the other ranks wait for the one that fails
        with pytest.raises(TrainError, match="one sample, on which a BatchNorm cannot train"):
            run_epoch(trainer(drop_last=False))


def test_an_evaluation_computes_in_the_type_of_the_training(group: Group) -> None:
    types = set()
    model = _network()
    model[2].register_forward_hook(lambda _, __, outputs: types.add(outputs.dtype))
    trainer = _trainer(group, model)
    trainer.amp = True
    trainer.evaluate(_numbers(), squared_error)
    assert types == {torch.bfloat16}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_half_precision_are_averaged(group: Group, dtype: torch.dtype) -> None:
    model = synchronise(nn.Linear(1, 1, bias=False).to(dtype), group)
    torch.autograd.backward(model(torch.full((1, 1), 1.0 + group.rank, dtype=dtype)).sum())
    (weight,) = model.parameters()
    assert float(weight.grad or 0) == pytest.approx((1 + group.world_size) / 2, rel=1e-2)


def _is_finite(model: nn.Module) -> bool:
    return all(bool(torch.isfinite(weight).all()) for weight in model.parameters())


def test_gradients_without_a_finite_norm_are_an_error_and_no_step(group: Group) -> None:
    trainer = _trainer(group, _network(), clip=1.0)
    trainer.loss = lambda outputs, targets: squared_error(outputs, targets) * 1e38 * 1e38
    with pytest.raises(TrainError, match="step 1: the gradient norm is"):
        run_epoch(trainer)
    assert _is_finite(trainer.model)
