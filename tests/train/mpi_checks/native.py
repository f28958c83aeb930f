"""Calls of torch that only reach backends in C++."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.train.mpi_checks.training import alone, close, ddp_curve
from tests.train.mpi_checks.values import me, of_all, of_rank, same, world


def check_functional_all_gather_writes_into_a_tensor() -> None:
    """inductor calls this form."""
    name = dist.distributed_c10d._get_default_group().group_name
    out = torch.zeros(6 * world(), 5)
    gather = torch.ops._c10d_functional.all_gather_into_tensor_out
    torch.ops._c10d_functional.wait_tensor(gather(of_rank(me()), world(), name, out=out))
    same(out, torch.cat(of_all()))


def check_the_builtin_fp16_hook_of_ddp() -> None:
    compress = dist.BuiltinCommHookType.FP16_COMPRESS
    close(ddp_curve(lambda model: model._register_builtin_comm_hook(compress)), alone(), 1e-3)
