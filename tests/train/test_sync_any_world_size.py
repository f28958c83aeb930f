"""Every strategy is the same training, at any number of ranks; run as test_any_world_size.py is."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from muster.train.data.sampler import GlobalBatchSampler
from muster.train.demo.config import TrainConfig
from muster.train.demo.datasets import load
from muster.train.demo.datasets.samples import Samples
from muster.train.demo.image_network import image_network
from muster.train.demo.loop import learning_rate
from muster.train.demo.main import image_trainer
from muster.train.job.group import Job, process_group
from muster.train.job.ranks import Ranks
from tests.train.epochs import put_back, run_epoch, whole_state

RANKS = Ranks.from_env(os.environ)
STRATEGIES = [
    "ddp",
    *(["none"] * (RANKS.world_size == 1)),
]
# 65 = 2 * 32 + 1: nothing divides, and of the last batch all ranks but the first have none.
PLAIN = TrainConfig(epochs=2, limit=65, batch_size=32)
# Of the 32 a rank may have 11, which 3 parts do not divide; the norm of the gradients is about 1.
IN_PARTS = dataclasses.replace(PLAIN, accumulate=3, clip=0.5)


@pytest.fixture(scope="module")
def group() -> Iterator[Job]:
    with process_group(RANKS, timeout=timedelta(seconds=180)) as joined:
        yield joined


@pytest.fixture(scope="module")
def digits() -> Samples:
    return load("digits", torch.float32, torch.device("cpu"))[0].at(slice(PLAIN.limit))


def one_process(config: TrainConfig, digits: Samples) -> list[float]:
    """The losses of the same training, written down as plainly as can be, without replicas.py."""
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


def trained(config: TrainConfig, group: Job, digits: Samples, then: str | None = None) -> list[float]:
    """The losses of our training; after an epoch its state goes on with the strategy `then`, if given."""
    trainer = image_trainer(config, group, digits)
    losses = [run_epoch(trainer)]
    if then:
        state = whole_state(trainer)
        trainer = image_trainer(dataclasses.replace(config, sync=then), group, digits)
        put_back(trainer, state)
    return [*losses, run_epoch(trainer, 1)]


@pytest.mark.parametrize("config", [PLAIN, IN_PARTS], ids=["plain", "in parts, clipped"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_losses_are_those_of_one_process(
    group: Job, digits: Samples, strategy: str, config: TrainConfig
) -> None:
    losses = trained(dataclasses.replace(config, sync=strategy), group, digits)
    assert losses == pytest.approx(one_process(config, digits), abs=1e-5)


@pytest.mark.parametrize(
    ("strategy", "then"), list(zip(STRATEGIES, [*STRATEGIES[1:], STRATEGIES[0]], strict=True))
)
def test_a_training_goes_on_with_another_strategy(
    group: Job, digits: Samples, strategy: str, then: str
) -> None:
    losses = trained(dataclasses.replace(PLAIN, sync=strategy), group, digits, then)
    assert losses == pytest.approx(one_process(PLAIN, digits), abs=1e-5)


def test_bfloat16_keeps_the_losses_in_a_band(group: Job, digits: Samples) -> None:
    losses = trained(dataclasses.replace(PLAIN, amp=True), group, digits)
    exact = one_process(PLAIN, digits)
    assert losses == pytest.approx(exact, abs=1e-2)
    assert losses != pytest.approx(exact, abs=1e-7)
