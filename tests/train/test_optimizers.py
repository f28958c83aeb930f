"""Every optimizer of torch trains a sharded model as a whole one, or is refused."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch
from torch import nn

from muster.train.job.failure import TrainError
from muster.train.job.group import Group
from muster.train.sync import make_strategy
from tests.train.forked import on_hosts

# Each of these needs more than a step() with dense gradients: a closure, sparse gradients, matrices alone.
OTHERS = {"Optimizer", "LBFGS", "SparseAdam", "Muon"}
OPTIMIZERS = {
    name: optimizer
    for name, optimizer in inspect.getmembers(torch.optim, inspect.isclass)
    if issubclass(optimizer, torch.optim.Optimizer) and name not in OTHERS
}


def _trained(group: Group, strategy: str, optimizer: type[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """Return the weights after some steps, on the same samples on every rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 5))
    made = make_strategy(strategy, model, group, optimizer, lr=0.01)
    for _ in range(3):
        made.optimizer.zero_grad()
        torch.autograd.backward(made.model(torch.linspace(-1, 1, 24).reshape(4, 6)).square().mean())
        made.optimizer.step()
    weights = made.model.parameters()
    return [getattr(each, "full_tensor", each.detach)().detach().clone() for each in weights]


def _compared(group: Group) -> dict[str, str]:
    """Return what is wrong with each optimizer under `--sync fsdp`: its refusal, or `other weights`."""
    wrong = {}
    for name, optimizer in OPTIMIZERS.items():
        try:
            sharded = _trained(group, "fsdp", optimizer)
        except TrainError as error:
            wrong[name] = str(error)
        else:
            alone = _trained(group, "none", optimizer)
            if not all(map(lambda one, other: torch.allclose(one, other, atol=1e-6), sharded, alone)):
                wrong[name] = "other weights"
    return wrong


def test_an_optimizer_trains_a_sharded_model_as_a_whole_one_or_is_refused(tmp_path: Path) -> None:
    refused = {
        name: f"--sync fsdp cannot train with {name}, which needs whole weights\nuse AdamW, or --sync zero"
        for name in ("Adafactor", "Rprop")
        if name in OPTIMIZERS
    }
    assert on_hosts(tmp_path, 2, _compared) == [refused, refused]
