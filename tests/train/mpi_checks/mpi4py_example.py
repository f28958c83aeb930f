"""The gradients of examples/mpi4py_allreduce.py: the sums over the ranks, whatever the backward passes do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from muster.train import TrainError
from muster.train.mpi_backend.direct import MPI
from tests.train.mpi_checks.values import me, world

sys.path.append(str(Path(__file__).parents[3] / "examples"))

import mpi4py_allreduce as example

TINY = 64  # bytes of a bucket: a weight of 4 x 4
Backward = Callable[[Any], None]


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).to(dtype)


def inputs() -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(me()))


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [None if each.grad is None else each.grad.clone() for each in model.parameters()]


def expected(model: nn.Module, backward: Backward) -> list[torch.Tensor | None]:
    """Let this rank run `backward`, and add up what it and the others have."""
    model.zero_grad()
    backward(model)
    sums: list[torch.Tensor | None] = []
    for parameter in model.parameters():
        there = torch.tensor(float(parameter.grad is not None))
        dist.all_reduce(there)
        total = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        dist.all_reduce(total)
        sums.append(total if there else None)
    model.zero_grad()
    return sums


def same_sums(model: nn.Module, last: Backward, before: Backward | None = None) -> None:
    """Compare with the example's sums, without overlap and with, in small buckets and in one."""

    def all_passes(model: nn.Module) -> None:
        if before:
            before(model)
        last(model)

    sums = expected(model, all_passes)
    for size in (TINY, example.BUCKET_BYTES):
        adding = gradient_sum(model, size)
        for overlap in (False, True, True):
            model.zero_grad()
            if before:
                before(model)
            if overlap:
                adding.begin()
            last(model)
            adding.finish()
            torch.testing.assert_close(gradients(model), sums)


def gradient_sum(model: nn.Module, size: int, wire: torch.dtype | None = None) -> example.GradientSum:
    before, example.BUCKET_BYTES = example.BUCKET_BYTES, size
    try:
        return example.GradientSum(model.parameters(), MPI.COMM_WORLD, wire)
    finally:
        example.BUCKET_BYTES = before


def whole(model: nn.Module) -> None:
    model(inputs()).sum().backward()


def check_one_backward_pass() -> None:
    same_sums(network(), whole)


def check_accumulation() -> None:
    same_sums(network(), whole, before=lambda model: (2 * model(inputs())).sum().backward())


def check_two_types() -> None:
    model = nn.Sequential(network(), network(torch.float64))
    same_sums(model, lambda model: model[1](model[0](inputs()).double()).sum().backward())


def check_parameters_without_gradient() -> None:
    """On the first rank the first layer has none, on no rank has the last."""
    model = network()

    def backward(model: nn.Sequential) -> None:
        begin = 2 if me() == 0 else 0
        model[begin:4](inputs()).sum().backward()

    same_sums(model, backward)
    assert all(parameter.grad is None for parameter in model[4].parameters())


def check_layers_in_another_order_on_each_rank() -> None:
    model = network()

    def backward(model: nn.Sequential) -> None:
        layers = [model[0], model[2], model[4]]
        for index in range(3):
            inner = layers[(index + me()) % 3]
            inner(inputs()).sum().backward()

    same_sums(model, backward)


class Twice(nn.Module):
    """A block that is used twice, under checkpointing that computes it again in its own backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.block = network()
        self.before_block: Callable[[], None] = lambda: None

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            values = checkpoint(self._block, values, use_reentrant=True)
        return values

    def _block(self, values: torch.Tensor) -> torch.Tensor:
        self.before_block()
        outputs: torch.Tensor = self.block(values)
        return outputs


def check_shared_weights_under_checkpointing() -> None:
    def backward(model: nn.Module) -> None:
        model(inputs().requires_grad_()).sum().backward()

    model = Twice()
    same_sums(model, backward)
    # The second part of a gradient comes when the sum with the first is done.
    sums = expected(model, backward)
    adding = gradient_sum(model, TINY)

    def wait() -> None:
        for bucket in adding.buckets:
            if bucket.sum is not None:
                bucket.sum.result()

    model.before_block = wait
    adding.begin()
    backward(model)
    adding.finish()
    torch.testing.assert_close(gradients(model), sums)


def check_one_rank_is_late_alone() -> None:
    """All ranks make a sum again that one rank began too early."""
    model = network()

    def backward(model: nn.Module) -> None:
        for _ in range(2 if me() == 0 else 1):
            whole(model)

    same_sums(model, backward)


def check_half_types() -> None:
    for wire, within in ((torch.bfloat16, 3e-2), (torch.float16, 4e-3)):
        model = network()
        sums = expected(model, whole)
        adding = gradient_sum(model, example.BUCKET_BYTES, wire)
        adding.begin()
        whole(model)
        adding.finish()
        torch.testing.assert_close(gradients(model), sums, rtol=within, atol=within)


def check_a_gradient_that_overflows_is_an_error_on_every_rank() -> None:
    model = network()
    adding = gradient_sum(model, TINY, torch.float16)
    (model(inputs()).sum() * (1e9 if me() == world() - 1 else 1)).backward()
    try:
        adding.finish()
    except TrainError as error:
        assert "a gradient is not finite, or above the largest torch.float16" in str(error)
    else:
        raise AssertionError("no error")
