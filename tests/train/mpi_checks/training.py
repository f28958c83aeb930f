"""What training is made of, on the MPI backend: the same gradients as one process has on the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tests.train.mpi_checks.values import DEVICE, drawn, fold, me, of_all, of_rank, same, world

ROWS = 4  # of each rank


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 3)).to(
        dtype
    )


def batch(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return drawn(2, ROWS * world(), 8, dtype=dtype)


def losses(
    model: nn.Module, inputs: torch.Tensor, optimizer: torch.optim.Optimizer, steps: int = 4
) -> list[float]:
    """Train on `inputs`; returns the loss of the whole batch after each step."""
    curve = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        curve.append(loss.detach().double())
    return [float(value) for value in curve]


def alone(steps: int = 4) -> list[float]:
    model = network()
    return losses(model, batch(), torch.optim.SGD(model.parameters(), lr=0.5), steps)


def of_all_ranks(curve: list[float]) -> list[float]:
    mean = torch.tensor(curve, dtype=torch.float64)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    return mean.tolist()


def close(actual: list[float], expected: list[float], within: float) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=within)


def mine() -> torch.Tensor:
    return batch()[ROWS * me() : ROWS * me() + ROWS]


def ddp_curve(
    hook: Callable[[DistributedDataParallel], None] = lambda _: None, **options: Any
) -> list[float]:
    model = DistributedDataParallel(network(), bucket_cap_mb=0.0005, **options)  # several buckets
    hook(model)
    return of_all_ranks(losses(model, mine(), torch.optim.SGD(model.parameters(), lr=0.5)))


def check_ddp_trains_as_one_process_does() -> None:
    variants: tuple[dict[str, Any], ...] = (
        {},
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"static_graph": True},
    )
    for options in variants:
        close(ddp_curve(**options), alone(), 1e-12)


def check_ddp_accumulates_without_communication() -> None:
    model = DistributedDataParallel(network())
    half = mine().split(ROWS // 2)
    with model.no_sync():
        model(half[0]).square().mean().backward()
    model(half[1]).square().mean().backward()
    reference = network()
    reference(batch()).square().mean().backward()
    for parameter, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad / 2, expected.grad, rtol=0, atol=1e-12)


def check_ddp_communication_hooks() -> None:
    def power(model: DistributedDataParallel) -> None:
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def then(_: object, bucket: dist.GradBucket) -> Any:
        work = dist.all_reduce(bucket.buffer().div_(world()), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    then.__annotations__.clear()  # torch compares them with classes, and here they are text
    close(
        ddp_curve(lambda model: model.register_comm_hook(None, default_hooks.allreduce_hook)), alone(), 1e-12
    )
    close(ddp_curve(lambda model: model.register_comm_hook(None, then)), alone(), 1e-12)
    compress = default_hooks.fp16_compress_hook
    close(ddp_curve(lambda model: model.register_comm_hook(None, compress)), alone(), 1e-3)
    close(ddp_curve(power), alone(), 5e-2)


def check_zero_redundancy_optimizer() -> None:
    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.5)
    close(of_all_ranks(losses(model, mine(), optimizer)), alone(), 1e-12)
    optimizer.consolidate_state_dict(to=0)
    if me() == 0:
        assert len(optimizer.state_dict()["param_groups"][0]["params"]) == 6


def check_fsdp2_trains_as_one_process_does() -> None:
    model = network()
    mesh = init_device_mesh(DEVICE.type, (world(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    close(of_all_ranks(losses(model, mine(), torch.optim.SGD(model.parameters(), lr=0.5))), alone(), 1e-12)


def check_fsdp2_in_mixed_precision() -> None:
    model = network(torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    fully_shard(model, mesh=init_device_mesh(DEVICE.type, (world(),)), mp_policy=policy)
    curve = losses(model, mine().float(), torch.optim.SGD(model.parameters(), lr=0.5))
    close(of_all_ranks(curve), alone(), 2e-2)
    assert curve[-1] < curve[0]


def check_dtensor_changes_its_layout() -> None:
    mesh = init_device_mesh(DEVICE.type, (world(),))
    whole = of_rank(0, torch.float32, world() * 3 + 1, 4)  # nothing divides
    for first, second in ((Shard(0), Replicate()), (Shard(0), Shard(1)), (Replicate(), Shard(1))):
        tensor = distribute_tensor(whole, mesh, [first]).redistribute(mesh, [second])
        same(tensor.full_tensor(), whole, (first, second))
    product = distribute_tensor(whole, mesh, [Shard(1)]) @ distribute_tensor(
        whole.t().contiguous(), mesh, [Shard(0)]
    )
    same(product.full_tensor(), whole @ whole.t())


def check_two_dimensional_mesh() -> None:
    mesh = init_device_mesh(DEVICE.type, (1, world()), mesh_dim_names=("replicate", "shard"))
    tensor = of_rank(me())
    dist.all_reduce(tensor, group=mesh.get_group("shard"))
    same(tensor, fold(torch.add, of_all()))
    model = network()
    fully_shard(model, mesh=mesh)
    close(of_all_ranks(losses(model, mine(), torch.optim.SGD(model.parameters(), lr=0.5))), alone(), 1e-12)
