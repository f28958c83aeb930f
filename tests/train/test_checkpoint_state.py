"""A checkpoint holds the whole network and optimizer, however they were split among the ranks."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from muster.train.checkpoint import files
from muster.train.checkpoint.random_numbers import random_state, set_random_state
from muster.train.job.failure import TrainError
from tests.train.forked import on_hosts
from tests.train.states import consolidated, restore

if TYPE_CHECKING:
    from muster.train.job.group import Job

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


STRATEGIES = {"ddp": _ddp, "zero": _zero, "fsdp": _fsdp}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_one_strategy_saved_any_other_continues(tmp_path: Path, strategy: str) -> None:
    """Two steps split among two ranks, one in a single process, and one split again: four alone."""

    def two_steps(_: Job) -> dict[str, Any]:
        model, optimizer = STRATEGIES[strategy]()
        _step(model, optimizer)
        _step(model, optimizer)
        return consolidated(model, optimizer, writers=(0, 1))

    states = on_hosts(tmp_path, 2, two_steps)
    assert states[0].keys() == states[1].keys() == {"model", "optimizer"}
    for state in states:
        _assert_close(_alone(2, state), _alone(4))

    def one_more(_: Job) -> dict[str, torch.Tensor]:
        model, optimizer = STRATEGIES[strategy]()
        restore(model, optimizer, states[0])
        _step(model, optimizer)
        whole: dict[str, torch.Tensor] = consolidated(model, optimizer, writers=(0, 1))["model"]
        return whole

    for weights in on_hosts(tmp_path, 2, one_more):
        _assert_close(weights, _alone(3))


def _assert_close(weights: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(dict(weights), dict(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_only_writers_collect_the_state(tmp_path: Path, strategy: str) -> None:
    states = on_hosts(tmp_path, 2, lambda _: consolidated(*_stepped(STRATEGIES[strategy]()), writers=(1,)))
    assert [set(state) for state in states] == [set(), {"model", "optimizer"}]
    _assert_close(states[1]["model"], _alone(1))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_checkpoint_before_the_first_step_is_the_beginning(tmp_path: Path, strategy: str) -> None:
    def saved_and_restored(_: Job) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        state = consolidated(*STRATEGIES[strategy](), writers=(0, 1))
        again = STRATEGIES[strategy]()
        restore(*again, copy.deepcopy(state))
        return state, consolidated(*_stepped(again), writers=(0, 1))["model"]

    for state, weights in on_hosts(tmp_path, 2, saved_and_restored):
        assert state["optimizer"]["state"] == {}
        _assert_close(weights, _alone(1))
        _assert_close(_alone(1, state), _alone(1))


def test_an_optimizer_that_never_has_a_state_continues_with_its_options() -> None:
    network, _ = _plain()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    _step(network, optimizer)
    other, _ = _plain()
    again = torch.optim.SGD(other.parameters(), lr=0.1)
    restore(other, again, consolidated(network, optimizer, writers=(0,)))
    assert again.param_groups[0]["lr"] == 0.5
    _step(network, optimizer)
    _step(other, again)
    _assert_close(other.state_dict(), network.state_dict())


def _stepped(pair: Pair) -> Pair:
    _step(*pair)
    return pair


def test_a_restored_optimizer_keeps_nothing_of_the_file(tmp_path: Path) -> None:
    """The file is mapped into memory and removed later; on some network disks that kills its readers."""
    state = consolidated(*_stepped(_plain()), writers=(0,))
    path = files.save(tmp_path, 1, state)
    loaded = files.load(path)
    model, optimizer = _plain()
    restore(model, optimizer, loaded)
    of_file = {tensor.untyped_storage().data_ptr() for tensor in _tensors(loaded)}
    assert of_file.isdisjoint(tensor.untyped_storage().data_ptr() for tensor in model.parameters())
    assert of_file.isdisjoint(
        tensor.untyped_storage().data_ptr() for tensor in _tensors(dict(optimizer.state))
    )


def _tensors(tree: Any) -> list[torch.Tensor]:
    if isinstance(tree, dict):
        return [tensor for value in tree.values() for tensor in _tensors(value)]
    return [tree] if isinstance(tree, torch.Tensor) else []


def test_every_random_number_continues(tmp_path: Path) -> None:
    def draw() -> tuple[float, float, float, float]:
        python = random.random()  # noqa: S311
        return python, np.random.rand(), np.random.randn(), float(torch.rand(()))

    np.random.randn()  # the next one is cached
    path = files.save(tmp_path, 1, random_state(torch.device("cpu")))
    expected = draw()
    draw()
    set_random_state(files.load(path), torch.device("cpu"))
    assert draw() == expected


def test_a_checkpoint_of_another_network_is_refused() -> None:
    network, optimizer = _plain(width=9)
    _step(network, optimizer)
    state = consolidated(network, optimizer, writers=(0,))
    with pytest.raises(TrainError, match=r"another network: 0.weight is \[9, 6\] there and \[8, 6\] here"):
        restore(*_plain(), state)
