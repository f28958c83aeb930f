"""A checkpoint holds the whole network and optimizer, however they were split among the ranks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from muster.train.checkpoint.state import consolidated, restore
from muster.train.job.failure import TrainError
from tests.train.forked import on_hosts

if TYPE_CHECKING:
    from muster.train.job.group import Group

Pair = tuple[nn.Module, torch.optim.Optimizer]


def _plain(width: int = 8) -> Pair:
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))
    return network, torch.optim.AdamW(network.parameters(), lr=0.01)


def _ddp() -> Pair:
    network, _ = _plain()
    model = nn.parallel.DistributedDataParallel(network)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def _zero() -> Pair:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    network, _ = _plain()
    model = nn.parallel.DistributedDataParallel(network)
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)


def _fsdp() -> Pair:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    network, _ = _plain()
    fully_shard(network, mesh=init_device_mesh("cpu", (2,)))
    return network, torch.optim.AdamW(network.parameters(), lr=0.01)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(model(torch.linspace(-1, 1, 24).reshape(4, 6)).square().sum())
    optimizer.step()


def _alone(steps: int, state: dict[str, Any] | None = None) -> dict[str, torch.Tensor]:
    network, optimizer = _plain()
    if state:
        restore(network, optimizer, copy.deepcopy(state))  # whose tensors the optimizer takes as its own
    for _ in range(steps):
        _step(network, optimizer)
    return network.state_dict()


WAYS = {"ddp": _ddp, "zero": _zero, "fsdp": _fsdp}


@pytest.mark.parametrize("way", WAYS)
def test_what_one_way_saved_any_way_continues(tmp_path: Path, way: str) -> None:
    """Two steps split among two ranks, one in a single process, and one split again: four alone."""

    def two_steps(_: Group) -> dict[str, Any]:
        model, optimizer = WAYS[way]()
        _step(model, optimizer)
        _step(model, optimizer)
        return consolidated(model, optimizer, writers=(0, 1))

    states = on_hosts(tmp_path, 2, two_steps)
    assert states[0].keys() == states[1].keys() == {"model", "optimizer"}
    for state in states:
        _assert_close(_alone(2, state), _alone(4))

    def one_more(_: Group) -> dict[str, torch.Tensor]:
        model, optimizer = WAYS[way]()
        restore(model, optimizer, states[0])
        _step(model, optimizer)
        whole: dict[str, torch.Tensor] = consolidated(model, optimizer, writers=(0, 1))["model"]
        return whole

    for weights in on_hosts(tmp_path, 2, one_more):
        _assert_close(weights, _alone(3))


def _assert_close(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(dict(weights), dict(expected), rtol=0, atol=1e-6)


def test_a_checkpoint_of_another_network_is_refused() -> None:
    network, optimizer = _plain(width=9)
    _step(network, optimizer)
    state = consolidated(network, optimizer, writers=(0,))
    with pytest.raises(TrainError, match="the checkpoint is of another network or optimizer"):
        restore(*_plain(), state)
