"""Distributed checkpoints on the MPI backend; the ranks need a disk that they share."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.train.mpi_checks.training import network
from tests.train.mpi_checks.values import me, same, world


def check_distributed_checkpoint() -> None:
    box: list[Any] = [tempfile.mkdtemp() if me() == 0 else None]
    dist.broadcast_object_list(box)
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (world(),)))
    saved = [parameter.full_tensor() for parameter in model.parameters()]
    dcp.save(model.state_dict(), checkpoint_id=box[0])
    assert Path(box[0], ".metadata").is_file()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = model.state_dict()
    dcp.load(state, checkpoint_id=box[0])
    model.load_state_dict(state)
    for parameter, before in zip(model.parameters(), saved, strict=True):
        same(parameter.full_tensor(), before)
