"""The training of the demo is the same at any number of ranks; run as test_any_world_size.py is."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from muster.train.data.sampler import GlobalBatchSampler
from muster.train.demo.config import TrainConfig
from muster.train.demo.datasets import Samples, load
from muster.train.demo.image_network import image_network
from muster.train.demo.loop import learning_rate, scheduled
from muster.train.demo.trainer import Trainer
from muster.train.job.failure import TrainError
from muster.train.job.group import Job, process_group
from muster.train.job.ranks import Ranks
from muster.train.replicas import share_buffers, synchronise

# 65 = 2 * 32 + 1: nothing divides, and of the last batch all ranks but the first have none.
PLAIN = TrainConfig(epochs=2, limit=65, batch_size=32)
CLIPPED = dataclasses.replace(PLAIN, clip=0.5)  # the norm of the gradients is about 1


@pytest.fixture(scope="module")
def group() -> Iterator[Job]:
    with process_group(Ranks.from_env(os.environ), timeout=timedelta(seconds=180)) as joined:
        yield joined


@pytest.fixture(scope="module")
def digits() -> Samples:
    return load("digits", torch.device("cpu"))[0].at(slice(PLAIN.limit))


def one_process(config: TrainConfig, digits: Samples) -> list[float]:
    """The losses of the same training, written down as plainly as can be, without the library."""
    torch.manual_seed(config.seed)
    network = image_network(digits.images.shape[1:], digits.classes)
    sgd = torch.optim.SGD(network.parameters(), momentum=0.9, nesterov=True, weight_decay=1e-4, lr=config.lr)
    sampler = GlobalBatchSampler(
        samples=len(digits), batch_size=config.batch_size, rank=0, world_size=1, seed=config.seed
    )
    losses, step = [], 0
    for epoch in range(config.epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for share in sampler.shares():
            steps = config.epochs * len(sampler)
            sgd.param_groups[0]["lr"] = learning_rate(step, peak=config.lr, warm_up=len(sampler), steps=steps)
            step += 1
            batch = digits.at(share.indices)
            loss = cross_entropy(network(batch.images), batch.labels)
            sgd.zero_grad()
            torch.autograd.backward(loss)
            if config.clip:
                clip_grad_norm_(network.parameters(), config.clip)
            sgd.step()
            total += loss.item() * len(batch)
        losses.append(total / len(digits))
    return losses


def trainer_of(config: TrainConfig, group: Job, digits: Samples) -> Trainer:
    return Trainer(config, group, digits, scheduled(config, len(digits)))


def trained(trainer: Trainer) -> list[float]:
    """Train for two epochs, without checkpoints and figures; returns the losses."""
    sampler, losses = trainer.batch_sampler, []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, share in enumerate(sampler.shares(), start=epoch * sampler.batches + 1):
            trainer.step(share, step)
        losses.append(trainer.epoch_loss())
    return losses


@pytest.mark.parametrize("config", [PLAIN, CLIPPED], ids=["plain", "clipped"])
def test_the_losses_are_those_of_one_process(group: Job, digits: Samples, config: TrainConfig) -> None:
    assert trained(trainer_of(config, group, digits)) == pytest.approx(one_process(config, digits), abs=1e-5)


def test_bfloat16_keeps_the_losses_in_a_band(group: Job, digits: Samples) -> None:
    trainer, exact = (
        trainer_of(dataclasses.replace(PLAIN, amp=True), group, digits),
        one_process(PLAIN, digits),
    )
    losses = trained(trainer)
    assert losses == pytest.approx(exact, abs=1e-2)
    assert losses != pytest.approx(exact, abs=1e-7)
    types = set()
    trainer.model.register_forward_hook(lambda _, __, outputs: types.add(outputs.dtype))
    trainer.accuracy(digits)
    assert types == {torch.bfloat16}


def test_the_ranks_share_an_evaluation(group: Job, digits: Samples) -> None:
    trainer = trainer_of(PLAIN, group, digits)
    right = trainer.model(digits.images).argmax(dim=1) == digits.labels
    assert trainer.accuracy(digits) == pytest.approx(float(right.double().mean()))


def test_gradients_without_a_finite_norm_are_an_error_and_no_step(group: Job, digits: Samples) -> None:
    trainer = trainer_of(CLIPPED, group, Samples(digits.images * float("inf"), digits.labels))
    with pytest.raises(TrainError, match="step 1: the gradient norm is"):
        trained(trainer)
    assert all(bool(torch.isfinite(weight).all()) for weight in trainer.model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_half_precision_are_averaged(group: Job, dtype: torch.dtype) -> None:
    model = synchronise(nn.Linear(1, 1, bias=False).to(dtype), group)
    torch.autograd.backward(model(torch.full((1, 1), 1.0 + group.rank, dtype=dtype)).sum())
    (weight,) = model.parameters()
    assert float(weight.grad or 0) == pytest.approx((1 + group.world_size) / 2, rel=1e-2)


def test_every_rank_gets_the_buffers_of_rank_0(group: Job) -> None:
    model = synchronise(nn.BatchNorm1d(4), group)
    model(torch.full((4, 4), float(group.rank)))
    mean = model.module.get_buffer("running_mean")
    assert len({*map(str, group.all_gather(mean.tolist()))}) == group.world_size
    share_buffers(model, group)
    assert len({*map(str, group.all_gather(mean.tolist()))}) == 1
