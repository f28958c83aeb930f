"""What GlobalBatchSampler promises, at many numbers of ranks, samples and batches."""

from __future__ import annotations

import itertools

import pytest
import torch

from muster.train.data.sampler import GlobalBatchSampler, Share


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


CASES = list(itertools.product((1, 5, 64, 193), (1, 7, 64, 1000), (1, 2, 3, 4, 7)))


@pytest.mark.parametrize(("samples", "batch_size", "world_size"), CASES)
def test_an_epoch_sees_every_sample_exactly_once(samples: int, batch_size: int, world_size: int) -> None:
    shares = _shares(samples, batch_size, world_size)
    seen = torch.cat([share.indices for of_rank in shares for share in of_rank])
    assert sorted(seen.tolist()) == list(range(samples))


@pytest.mark.parametrize(("samples", "batch_size", "world_size"), CASES)
def test_the_global_batches_are_those_of_one_rank(samples: int, batch_size: int, world_size: int) -> None:
    shares = _shares(samples, batch_size, world_size)
    assert _batches(shares) == _batches(_shares(samples, batch_size, 1))
    for step in zip(*shares, strict=True):
        sizes = [len(share.indices) for share in step]
        assert {share.batch_size for share in step} == {sum(sizes)}
        assert max(sizes) - min(sizes) <= 1


def test_another_epoch_has_another_order_and_the_same_epoch_the_same() -> None:
    assert _batches(_shares(193, 64, 2, epoch=1)) != _batches(_shares(193, 64, 2, epoch=2))
    assert _batches(_shares(193, 64, 2, epoch=1)) == _batches(_shares(193, 64, 2, epoch=1))


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
