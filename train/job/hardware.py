"""How a rank uses its host: how many cores, and when its GPU has finished."""

from __future__ import annotations

import os

import torch

from .ranks import Ranks


def use_fair_share_of_cores(ranks: Ranks) -> None:
    """Give torch an equal share of the host's cores, unless OMP_NUM_THREADS sets the number of threads.

    A launcher that binds ranks to cores has divided them already: then the share is the cores of this rank.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return
    share = (os.cpu_count() or 1) // ranks.local_world_size
    torch.set_num_threads(max(1, min(share, len(os.sched_getaffinity(0)))))


def wait_for_gpu(device: torch.device | None) -> None:
    """Return when the GPU `device` has done everything that was asked of it; at once for another device."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
