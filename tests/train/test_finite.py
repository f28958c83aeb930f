"""A loss that is not finite is an error on every rank, before a checkpoint is saved."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch

from muster.train.job.failure import TrainError
from muster.train.job.finite import FiniteLosses, all_finite
from muster.train.job.group import Job
from tests.train.forked import on_hosts, train_alone


def _refusal(losses: list[float], weight: float, with_gradient: bool, group: Job) -> str:
    """Have the last rank compute these losses, one in each step; returns what check_finite says."""
    for loss in losses:
        mine = torch.tensor([loss if group.rank == group.world_size - 1 else 1.0])
        group.global_mean(mine.requires_grad_(with_gradient))
    weights = [torch.ones(2, 2), torch.tensor([1.0, weight if group.rank == 0 else 1.0]), torch.tensor([])]
    try:
        group.check_finite(12, weights)
    except TrainError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("ranks", "bad"), [(1, math.nan), (2, math.inf), (3, -math.inf)])
def test_a_loss_that_is_not_finite_fails_every_rank(tmp_path: Path, ranks: int, bad: float) -> None:
    said = on_hosts(tmp_path, ranks, partial(_refusal, [1.0, bad, 1.0], 1.0, True))
    last = ranks - 1
    where = f"step 12: inf or nan on rank {last} (host{last}): its training loss number 2 since the start;"
    assert said[0].startswith(where)
    assert set(said) == {said[0]}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_ruined_weight_is_found_though_losses_were_finite(tmp_path: Path, ranks: int) -> None:
    said = on_hosts(tmp_path, ranks, partial(_refusal, [1.0], math.inf, True))
    assert {text.partition(";")[0] for text in said} == {"step 12: inf or nan on rank 0 (host0): a weight"}


def test_finite_losses_and_those_of_an_evaluation_are_none(tmp_path: Path) -> None:
    assert on_hosts(tmp_path, 2, partial(_refusal, [1.0, 2.0], 1.0, True)) == ["", ""]
    assert on_hosts(tmp_path, 2, partial(_refusal, [1.0, math.nan], 1.0, False)) == ["", ""]


def test_large_weights_of_16_bits_are_finite() -> None:
    """Their 2-norm is not, in 16 bits."""
    weights = [torch.full((4,), 6e4, dtype=torch.float16)]
    assert all_finite(weights)


def test_a_loss_is_noted_without_reading_it() -> None:
    """A meta tensor has no value that the host could read, as a GPU's is not there yet."""
    losses = FiniteLosses()
    for _ in range(3):
        losses.note(torch.empty((), device="meta"))


def test_the_demo_ends_at_the_first_logged_step_with_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"step 4: inf or nan on rank 0 .*: its training loss number 3 "):
        train_alone(tmp_path, "--epochs", "1", "--lr", "1e25", "--log-every", "2", "--limit", "640")
