"""What GlobalBatchSampler promises, at many numbers of ranks, samples and batches."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from muster.train.data.order import shuffled
from muster.train.data.sampler import AT_ONCE, GlobalBatchSampler, Share
from muster.train.job.failure import TrainError


def _shares(samples: int, batch_size: int, world_size: int, epoch: int = 0) -> list[list[Share]]:
    """Return the shares of every rank, in rank order."""
    samplers = [
        GlobalBatchSampler(samples=samples, batch_size=batch_size, rank=rank, world_size=world_size, seed=7)
        for rank in range(world_size)
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(sampler.shares()) for sampler in samplers]


def _batches(shares: list[list[Share]]) -> list[set[int]]:
    """Put the ranks' shares of each step together again."""
    return [set(torch.cat([share.indices for share in step]).tolist()) for step in zip(*shares, strict=True)]


@pytest.fixture(scope="module")
def shares_of() -> dict[tuple[int, int, int], list[list[Share]]]:
    """The shares of every rank, by the numbers of samples, of a batch and of ranks."""
    cases = itertools.product((1, 5, 64, 193), (1, 7, 64, 1000), (1, 2, 3, 4, 7))
    return {case: _shares(*case) for case in cases}


def test_an_epoch_has_every_sample_once(shares_of: dict[tuple[int, int, int], list[list[Share]]]) -> None:
    for case, shares in shares_of.items():
        seen = torch.cat([share.indices for of_rank in shares for share in of_rank])
        assert sorted(seen.tolist()) == list(range(case[0])), case


def test_global_batches_are_of_one_rank(shares_of: dict[tuple[int, int, int], list[list[Share]]]) -> None:
    for (samples, batch_size, world_size), shares in shares_of.items():
        case = (samples, batch_size, world_size)
        assert _batches(shares) == _batches(shares_of[samples, batch_size, 1]), case
        for step in zip(*shares, strict=True):
            sizes = [len(share.indices) for share in step]
            assert {share.batch_size for share in step} == {sum(sizes)}, case
            assert max(sizes) - min(sizes) <= 1, case


def test_another_epoch_has_another_order_and_the_same_epoch_the_same() -> None:
    assert _batches(_shares(193, 64, 2, epoch=1)) != _batches(_shares(193, 64, 2, epoch=2))
    assert _batches(_shares(193, 64, 2, epoch=1)) == _batches(_shares(193, 64, 2, epoch=1))


def test_the_length_after_a_skip_is_what_an_iteration_yields() -> None:
    sampler = GlobalBatchSampler(samples=9 * 8 - 3, batch_size=8, rank=0, world_size=2)
    whole = list(sampler)
    sampler.set_epoch(0, skip=5)
    loader = DataLoader(TensorDataset(torch.arange(69)), batch_sampler=sampler)
    assert (len(loader), len(list(loader)), sampler.batches) == (4, 4, 9)
    assert list(sampler) == whole[5:]
    sampler.set_epoch(0, skip=10)
    assert (len(sampler), list(sampler)) == (0, [])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 0}, "the data set has no samples"),
        ({"batch_size": 0}, "batch_size must be 1 or more samples, got 0"),
        ({"samples": 3, "drop_last": True}, "3 samples make no whole batch of 8"),
        ({"rank": 2}, "a sampler for rank 2 of 2"),
    ],
)
def test_what_leaves_nothing_to_train_on_is_refused_at_once(options: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainError, match=words):
        GlobalBatchSampler(**{"samples": 9, "batch_size": 8, "rank": 0, "world_size": 2, **options})


def test_the_order_of_very_many_samples_needs_little_memory() -> None:
    """torch.randperm would take 80 TB."""
    sampler = GlobalBatchSampler(samples=10**13, batch_size=64, rank=1, world_size=2)
    sampler.set_epoch(1, skip=10**11)
    first = next(iter(sampler))
    assert len(first) == 32
    assert max(first) > 10**12
    assert AT_ONCE * 8 < 10**6


def test_a_batch_may_be_larger_than_what_is_computed_at_once() -> None:
    samples, batch_size = 3 * AT_ONCE, AT_ONCE + 1
    sampler = GlobalBatchSampler(samples=samples, batch_size=batch_size, rank=0, world_size=1)
    shares = [share.indices for share in sampler.shares()]
    assert [len(share) for share in shares] == [batch_size, batch_size, samples - 2 * batch_size]
    assert torch.equal(torch.cat(shares).sort().values, torch.arange(samples))


@pytest.mark.parametrize("count", [4, 5])
def test_every_order_is_equally_likely(count: int) -> None:
    """Pearson's statistic of the orders of so many samples, below its 99.99th percentile."""
    trials = 100 * math.factorial(count)
    orders = Counter(
        tuple(shuffled(np.arange(count, dtype=np.uint64), count, (seed, 0)).tolist())
        for seed in range(trials)
    )
    assert len(orders) == math.factorial(count)
    freedom = math.factorial(count) - 1
    statistic = sum((seen - 100) ** 2 / 100 for seen in orders.values())
    assert statistic < freedom + 4 * math.sqrt(2 * freedom) + 10


def test_no_epoch_of_one_seed_is_an_epoch_of_another() -> None:
    orders = set()
    for seed, epoch in itertools.product(range(4), range(4)):
        sampler = GlobalBatchSampler(samples=193, batch_size=193, rank=0, world_size=1, seed=seed)
        sampler.set_epoch(epoch)
        orders |= {tuple(share.indices.tolist()) for share in sampler.shares()}
    assert len(orders) == 16


def test_an_order_without_shuffling_is_the_samples_own() -> None:
    sampler = GlobalBatchSampler(samples=5, batch_size=2, rank=0, world_size=1, shuffle=False)
    assert [share.indices.tolist() for share in sampler.shares()] == [[0, 1], [2, 3], [4]]
