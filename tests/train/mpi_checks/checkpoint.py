"""Distributed checkpoints on the MPI backend; the ranks need a disk that they share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.train.mpi_checks.training import network
from tests.train.mpi_checks.values import DEVICE, me, same, world


def folder() -> Any:
    box: list[Any] = [tempfile.mkdtemp() if me() == 0 else None]
    dist.broadcast_object_list(box)
    return box[0]


def sharded() -> torch.nn.Module:
    model = network()
    fully_shard(model, mesh=init_device_mesh(DEVICE.type, (world(),)))
    return model


def saved_and_loaded(save: Callable[[dict[str, Any], str], object]) -> None:
    model, place = sharded(), folder()
    saved = [parameter.full_tensor() for parameter in model.parameters()]
    save(model.state_dict(), place)
    assert Path(place, ".metadata").is_file()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = model.state_dict()
    dcp.load(state, checkpoint_id=place)
    model.load_state_dict(state)
    for parameter, before in zip(model.parameters(), saved, strict=True):
        same(parameter.full_tensor(), before)


def check_distributed_checkpoint() -> None:
    saved_and_loaded(lambda state, place: dcp.save(state, checkpoint_id=place))


def check_asynchronous_distributed_checkpoint() -> None:
    saved_and_loaded(lambda state, place: dcp.async_save(state, checkpoint_id=place).result())


def check_a_state_that_rank_0_broadcasts() -> None:
    model = sharded()
    full = {name: value + 1 for name, value in network().state_dict().items()} if me() == 0 else {}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, full, options=options)
    for parameter, before in zip(model.parameters(), network().parameters(), strict=True):
        same(parameter.full_tensor(), before.detach() + 1)


def check_a_sharded_tensor_is_gathered_where_torch_has_no_cuda() -> None:
    tensor = sharded_tensor.full(
        ChunkShardingSpec(0, [f"rank:{rank}/cpu" for rank in range(world())]), (6, 2), 3.0
    )
    whole = torch.zeros(6, 2, device="cpu") if me() == 0 else None
    tensor.gather(dst=0, out=whole)
    if whole is not None:
        same(whole, torch.full((6, 2), 3.0, device="cpu"))


def check_a_state_that_rank_0_gathers() -> None:
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: dict[str, Any] = get_model_state_dict(sharded(), options=options)
    assert bool(state) == (me() == 0)
    for name, value in state.items():
        same(value, network().state_dict()[name].cpu())
