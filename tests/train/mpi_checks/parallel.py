"""Ways to train that torch has: hooks and options of DDP, tensor and pipeline parallelism, FSDP2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from tests.train.mpi_checks.training import (
    ROWS,
    alone,
    batch,
    close,
    ddp_curve,
    losses,
    mine,
    network,
    of_all_ranks,
)
from tests.train.mpi_checks.values import DEVICE, drawn, me, same, world

Builtin = dist.BuiltinCommHookType


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5)


def check_ddp_adds_sparse_gradients() -> None:
    def embedding(*, sparse: bool) -> nn.Embedding:
        torch.manual_seed(1)
        return nn.Embedding(10, 4, sparse=sparse)

    model = DistributedDataParallel(embedding(sparse=True))
    model(torch.tensor([me(), 9])).sum().backward()
    gradient = model.module.weight.grad
    assert gradient.is_sparse
    expected = torch.zeros(10, 4)
    expected[: world()] = 1 / world()
    expected[9] = 1
    torch.testing.assert_close(gradient.to_dense(), expected)


def check_ddp_joins_ranks_that_have_less_data() -> None:
    model = DistributedDataParallel(network())
    with Join([model]):
        for _ in range(me() + 1):
            model(mine()).square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def check_ddp_finds_parameters_that_some_ranks_do_not_use() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 3), nn.Linear(8, 3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return (self.second if me() == 1 else self.first)(inputs)  # type: ignore[no-any-return]

    torch.manual_seed(1)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    for _ in range(2):
        model(torch.ones(2, 8)).sum().backward()
    torch.testing.assert_close(model.module.second.bias.grad, torch.full((3,), 4.0 / world()))


def check_ddp_broadcasts_buffers() -> None:
    model = DistributedDataParallel(nn.BatchNorm1d(4))
    model(torch.full((8, 4), float(me())) + torch.arange(8.0)[:, None])
    model(torch.ones(8, 4) * torch.arange(8.0)[:, None])
    box = [model.module.running_mean.clone()]
    dist.broadcast(box[0], 0)
    same(model.module.running_mean, box[0])


def hooked(hook: Callable[[DistributedDataParallel], None], within: float) -> None:
    close(ddp_curve(hook), alone(), within)


def check_the_builtin_hook_of_ddp() -> None:
    hooked(lambda model: model._register_builtin_comm_hook(Builtin.ALLREDUCE), 1e-12)


def check_post_local_sgd() -> None:
    model = DistributedDataParallel(network())
    alone_in_it, _ = dist.new_subgroups_by_enumeration([[rank] for rank in range(world())])
    state = post_localSGD_hook.PostLocalSGDState(None, alone_in_it, start_localSGD_iter=2)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(sgd(model), PeriodicModelAverager(period=2, warmup_steps=2))
    curve = of_all_ranks(losses(model, mine(), optimizer, 8))
    assert curve[-1] < curve[0]


def check_fsdp2_shards_and_replicates() -> None:
    for shape in ((world(), 1), (1, world())):
        model = network()
        fully_shard(model, mesh=init_device_mesh(DEVICE.type, shape, mesh_dim_names=("replicate", "shard")))
        close(of_all_ranks(losses(model, mine(), sgd(model))), alone(), 1e-12)


def check_fsdp2_offloads() -> None:
    model = network()
    mesh = init_device_mesh(DEVICE.type, (world(),))
    fully_shard(model, mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    close(of_all_ranks(losses(model, mine(), sgd(model))), alone(), 1e-12)


def check_fsdp2_clips_gradients() -> None:
    model, reference = network(), network()
    fully_shard(model, mesh=init_device_mesh(DEVICE.type, (world(),)))
    model(mine()).square().mean().backward()
    reference(batch()).square().mean().backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    expected = nn.utils.clip_grad_norm_(reference.parameters(), 0.01)
    torch.testing.assert_close(norm.full_tensor() if isinstance(norm, DTensor) else norm, expected)


def check_fsdp1() -> None:
    model = FullyShardedDataParallel(network(), device_id=DEVICE)
    close(of_all_ranks(losses(model, mine(), sgd(model))), alone(), 1e-12)


def check_tensor_parallel_linears() -> None:
    mesh = init_device_mesh(DEVICE.type, (world(),))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 6))
    expected = model(torch.ones(2, 8))
    split = parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    torch.testing.assert_close(split(torch.ones(2, 8)), expected)
    split(torch.ones(2, 8)).sum().backward()


def check_sequence_parallel_norm() -> None:
    mesh = init_device_mesh(DEVICE.type, (world(),))
    model = nn.Sequential(nn.LayerNorm(8))
    inputs = drawn(1, 2, 6, 8)
    expected = model(inputs)
    output = parallelize_module(model, mesh, {"0": SequenceParallel()})(
        distribute_tensor(inputs, mesh, [Shard(1)])
    )
    torch.testing.assert_close(output.full_tensor(), expected)


def check_loss_parallel() -> None:
    mesh = init_device_mesh(DEVICE.type, (world(),))
    logits = drawn(1, 4, 12)
    target = torch.tensor([0, 3, 7, 11])
    expected = nn.functional.cross_entropy(logits, target)
    split = distribute_tensor(logits, mesh, [Shard(1)]).requires_grad_()
    with loss_parallel():
        loss = nn.functional.cross_entropy(split, target)
        loss.backward()
    torch.testing.assert_close(loss.full_tensor() if isinstance(loss, DTensor) else loss, expected)


def check_dtensor_adds_what_ranks_have() -> None:
    mesh = init_device_mesh(DEVICE.type, (world(),))
    whole = distribute_tensor(torch.arange(12.0).view(6, 2), mesh, [Shard(0)])
    same(whole.sum().full_tensor(), torch.tensor(66.0))
    same(whole.redistribute(mesh, [Replicate()]).to_local(), torch.arange(12.0).view(6, 2))


def pipeline(schedule: type[Any]) -> None:
    """Three stages of a linear layer each, against the same layers one after the other."""
    torch.manual_seed(1)
    layers = [nn.Linear(8, 8) for _ in range(world())]
    inputs = drawn(2, ROWS * 3, 8)
    expected = inputs
    for layer in layers:
        expected = layer(expected)
    stage = PipelineStage(layers[me()], me(), world(), DEVICE)
    steps = schedule(
        stage, n_microbatches=3, loss_fn=lambda output, target: (output - target).square().mean()
    )
    out = steps.step(inputs) if me() == 0 else None
    if me() == world() - 1:
        out = steps.step(target=torch.zeros(ROWS * 3, 8))
        torch.testing.assert_close(out, expected)
    elif me():
        steps.step()
    assert all(parameter.grad is not None for parameter in layers[me()].parameters())


def check_pipeline_gpipe() -> None:
    pipeline(ScheduleGPipe)


def check_pipeline_1f1b() -> None:
    pipeline(Schedule1F1B)
