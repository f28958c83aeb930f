"""job.seed: the same weights, and other random numbers on every rank."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from muster.train.checkpoint.random_numbers import RandomStreams
from muster.train.job.group import Job, seed_streams
from muster.train.replicas import synchronise
from tests.train.forked import on_hosts


class Augmented(Dataset[list[int]]):
    """Samples that are random numbers of a worker."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> list[int]:
        return [random.getrandbits(31), int(np.random.randint(2**31)), int(torch.randint(2**31, ()))]


def _drawn(workers: int, group: Job) -> tuple[list[float], list[int]]:
    """Return the weights of a model, and what dropout and a DataLoader draw."""
    group.seed(7)
    model = synchronise(nn.Linear(2, 2), group)
    dropout = int(nn.Dropout()(torch.ones(60)).bool().long() @ (2 ** torch.arange(60)))
    loader = DataLoader(Augmented(), batch_size=None, num_workers=workers)
    numbers = [dropout, *(number for sample in loader for number in sample)]
    return [weight for parameter in model.parameters() for weight in parameter.flatten().tolist()], numbers


@pytest.mark.parametrize(("ranks", "workers"), [(3, 0), (2, 1)])
def test_the_ranks_share_weights_and_no_other_random_number(tmp_path: Path, ranks: int, workers: int) -> None:
    drawn = on_hosts(tmp_path, ranks, partial(_drawn, workers))
    (alone,) = on_hosts(tmp_path, 1, partial(_drawn, workers))
    assert drawn[0] == alone  # rank 0 draws what one process does
    assert all(weights == alone[0] for weights, _ in drawn)
    assert len({number for _, numbers in drawn for number in numbers}) == ranks * 7


def test_ranks_of_one_stream_draw_the_same(tmp_path: Path) -> None:
    def draw(group: Job) -> float:
        group.seed(7, stream=group.rank // 2)
        return torch.rand(()).item()

    first, second, third = on_hosts(tmp_path, 3, draw)
    assert first == second != third


def test_no_stream_of_one_seed_is_a_stream_of_another() -> None:
    drawn = set()
    for seed in range(8):
        for stream in range(8):
            seed_streams(seed, stream)
            drawn |= {random.getrandbits(60), float(np.random.rand()), int(torch.randint(2**60, ()))}
    assert len(drawn) == 3 * 64


def _numbers() -> list[float]:
    return [random.random(), float(np.random.randn()), torch.rand(()).item()]  # noqa: S311


def test_a_resumed_training_draws_on_on_every_rank(tmp_path: Path) -> None:
    def interrupted(group: Job) -> tuple[dict[str, object], list[float]]:
        group.seed(7)
        _numbers()
        state = RandomStreams(group).state_dict()
        return state, _numbers()

    def resumed(state: dict[str, object], group: Job) -> list[float]:
        RandomStreams(group).load_state_dict(state)
        return _numbers()

    went_on = on_hosts(tmp_path, 2, interrupted)
    state = went_on[0][0]
    assert on_hosts(tmp_path, 2, partial(resumed, state)) == [numbers for _, numbers in went_on]
    of_three = on_hosts(tmp_path, 3, partial(resumed, state))
    assert of_three == on_hosts(tmp_path, 3, partial(resumed, state))
    assert len({number for numbers in of_three for number in numbers}) == 9
