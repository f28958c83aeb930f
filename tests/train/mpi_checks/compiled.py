"""torch.compile beside the collectives."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.train.mpi_checks.training import alone, close, losses, mine, network, of_all_ranks
from tests.train.mpi_checks.values import DEVICE, fold, me, of_all, of_rank, same, world


def curve_of(model: nn.Module, compiled: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    close(of_all_ranks(losses(compiled, mine(), optimizer)), alone(), 1e-9)


def check_a_compiled_ddp() -> None:
    model = DistributedDataParallel(network())
    curve_of(model, torch.compile(model))


def check_a_compiled_ddp_without_inductor() -> None:
    model = DistributedDataParallel(network())
    curve_of(model, torch.compile(model, backend="aot_eager"))


def check_a_compiled_ddp_with_buffers() -> None:
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)))
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(3):
        compiled(torch.ones(4, 8) * me()).sum().backward()
    box = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    for gradient in box:
        other = gradient.clone()
        dist.broadcast(other, 0)
        same(gradient, other)


def check_a_compiled_model_in_ddp() -> None:
    model = DistributedDataParallel(torch.compile(network(), backend="aot_eager"))
    curve_of(model, model)


def check_a_compiled_fsdp2() -> None:
    model = network()
    fully_shard(model, mesh=init_device_mesh(DEVICE.type, (world(),)))
    curve_of(model, torch.compile(model, backend="aot_eager"))


def check_compiled_functional_collectives() -> None:
    """inductor's code calls the form that writes into a tensor."""
    group: Any = dist.group.WORLD

    @torch.compile
    def step(tensor: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(tensor * 2, "sum", group)
        return functional.all_gather_tensor(total + 1, 0, group) * 3

    same(step(of_rank(me())), (fold(torch.add, of_all()) * 2 + 1).repeat(world(), 1) * 3)


def check_a_compiled_function_with_all_reduce() -> None:
    @torch.compile(backend="aot_eager")
    def step(tensor: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(tensor)
        return tensor * 2

    same(step(of_rank(me())), fold(torch.add, of_all()) * 2)


def check_compiled_reduce_scatter() -> None:
    group: Any = dist.group.WORLD

    @torch.compile
    def step(tensor: torch.Tensor) -> Any:
        return functional.reduce_scatter_tensor(tensor + 1, "sum", 0, group) * 2

    whole = fold(torch.add, of_all(torch.float32, world() * 2)) + world()
    same(step(of_rank(me(), torch.float32, world() * 2)), whole[2 * me() : 2 * me() + 2] * 2)
