"""What a rank may use of its host: which device, how many cores."""

from __future__ import annotations

import os

import torch

from train.errors import TrainError
from train.ranks import Ranks


def device_for(backend: str, ranks: Ranks) -> torch.device:
    """Return the GPU numbered by the local rank for nccl, which needs one each; else the CPU."""
    if backend != "nccl":
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if ranks.local_rank >= gpus:
        raise TrainError(
            f"{ranks}: no GPU left, this host has {gpus} and nccl needs one for each rank\n"
            "start fewer ranks here, or use --backend gloo"
        )
    device = torch.device("cuda", ranks.local_rank)
    torch.cuda.set_device(device)
    return device


def use_fair_share_of_cores(ranks: Ranks) -> None:
    """Give torch an equal share of the host's cores, unless OMP_NUM_THREADS has said how many.

    By default every rank starts a thread for every core, and the ranks of a host slow each other down.
    Where the launcher binds ranks to cores, it has divided them already: then the share is what this rank
    is bound to.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return
    share = (os.cpu_count() or 1) // ranks.local_world_size
    torch.set_num_threads(max(1, min(share, len(os.sched_getaffinity(0)))))
