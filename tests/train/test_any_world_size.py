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

from muster.train.job.group import Group, process_group
from muster.train.job.ranks import Ranks


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """Join all ranks; a rank whose test failed may not keep the others as long as the job may last."""
    with process_group(Ranks.from_env(os.environ), timeout=timedelta(seconds=180)) as joined:
        yield joined


def test_the_ranks_are_those_of_the_launcher(group: Group) -> None:
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


def test_values_are_added_up_over_the_ranks(group: Group) -> None:
    count = group.world_size
    assert group.all_reduce_sum(1.0, group.rank) == [count, count * (count - 1) / 2]


def test_rank_0_tells_the_others(group: Group) -> None:
    assert group.broadcast({"from": group.rank})["from"] == 0


def test_the_mesh_has_every_rank(group: Group) -> None:
    mesh = group.mesh()
    assert mesh.size() == group.world_size
    assert mesh.get_local_rank() == group.rank
