"""What holds at any number of ranks, in whatever way they are started.

    pytest tests/train/test_any_world_size.py
    mpirun -n 2 pytest tests/train/test_any_world_size.py
    torchrun --nproc-per-node 3 -m pytest tests/train/test_any_world_size.py

Every rank runs every test, in the same order, so each test may use collectives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from muster.train.job.failure import TrainError
from muster.train.job.group import Job, process_group
from muster.train.job.join import located
from muster.train.job.ranks import Ranks


@pytest.fixture(scope="module")
def group() -> Iterator[Job]:
    """Join all ranks; a rank whose test failed may not keep the others as long as the job may last."""
    with process_group(Ranks.from_env(os.environ), timeout=timedelta(seconds=180)) as joined:
        yield joined


def test_the_ranks_are_those_of_the_launcher(group: Job) -> None:
    """The launcher's own variables, and what the ranks tell each other, not what the group was made of."""
    names = {"OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE", "RANK": "WORLD_SIZE"}
    rank, size = next(
        ((int(os.environ[one]), int(os.environ[all_])) for one, all_ in names.items() if one in os.environ),
        (0, 1),
    )
    assert (group.rank, group.world_size) == (rank, size)
    counted = torch.zeros(size)
    counted[rank] = 1
    dist.all_reduce(counted)
    assert counted.tolist() == [1] * size  # each rank is there, and once
    assert group.hosts == (group.hosts[group.rank],) * size  # all of them run here
    assert (group.node_rank, group.host_count) == (0, 1)


def test_values_are_added_up_over_the_ranks(group: Job) -> None:
    count = group.world_size
    assert group.all_reduce_sum(1.0, group.rank) == [count, count * (count - 1) / 2]


def test_rank_0_tells_the_others(group: Job) -> None:
    assert group.broadcast({"from": group.rank})["from"] == 0


def test_the_mesh_has_every_rank(group: Job) -> None:
    mesh = group.mesh()
    assert mesh.size() == group.world_size
    assert mesh.get_local_rank() == group.rank


def test_accumulated_gradients_are_those_of_the_whole_step(group: Job) -> None:
    """Rank r has 10 losses of r, and then r of 7."""
    weight = torch.ones((), requires_grad=True)
    parts = [torch.full((10,), float(group.rank)), torch.full((group.rank,), 7.0)]
    total = 10 + group.rank
    for part in parts:
        torch.autograd.backward(group.global_mean(part * weight, step_total=total))
    assert weight.grad is not None
    averaged = group.all_reduce_sum(weight.grad.item())[0] / group.world_size
    ranks = range(group.world_size)
    expected = sum(10 * rank + 7 * rank for rank in ranks) / sum(10 + rank for rank in ranks)
    assert averaged == pytest.approx(expected)


def test_the_ranks_draw_different_numbers(group: Job) -> None:
    group.seed(3)
    drawn = group.all_gather(int(torch.randint(2**60, ())), int)
    assert len({*drawn}) == group.world_size


def test_the_ranks_of_a_host_find_each_other(group: Job) -> None:
    """With RANK and WORLD_SIZE alone; all of them run here."""
    bare = Ranks.from_env({"RANK": str(group.rank), "WORLD_SIZE": str(group.world_size)})
    here = located(bare, group.store, timedelta(seconds=180))
    assert here == Ranks(group.rank, group.world_size, group.rank, group.world_size, "env")


def test_every_rank_refuses_a_loss_that_is_not_finite(group: Job) -> None:
    """The last test of these: the group remembers it."""
    last = group.world_size - 1
    group.check_finite(1)
    group.global_mean(torch.tensor([float("nan") if group.rank == last else 1.0], requires_grad=True))
    with pytest.raises(TrainError, match=rf"step 2: inf or nan on rank {last} .* loss number \d+ since"):
        group.check_finite(2)
