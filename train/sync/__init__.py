"""The ways in which ranks make one network of theirs: a file each, all with the methods of protocol.py."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from torch import nn
from torch.optim import Optimizer

from ..errors import TrainError
from ..group import Group
from .protocol import Sync

# Imported when chosen: FSDP takes torch a second to load, and mpi4py initialises MPI.
_CLASSES = {
    "ddp": "ddp.Ddp",
    "mpi4py": "mpi_buckets.MpiBuckets",
    "mpi4py-naive": "mpi_naive.MpiNaive",
    "zero": "zero.Zero",
    "fsdp": "fsdp.Fsdp",
    "none": "alone.Alone",
}
WAYS = tuple(_CLASSES)
COMPRESSIONS = ("none", "fp16", "bf16")


def synchronise(
    network: nn.Module,
    group: Group,
    way: str,
    optimizer: type[Optimizer],
    *,
    compress: str = "none",
    **options: Any,
) -> Sync:
    """Take `network`, on its device, into the care of `way`, one of WAYS; `options` are the optimizer's.

    `compress`, one of COMPRESSIONS, is for "mpi4py" alone. Raises TrainError where `way` cannot work.
    """
    module, name = _CLASSES[way].split(".")
    try:
        made_by = getattr(import_module(f"muster.train.sync.{module}"), name)
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py found no MPI library
        raise TrainError(f"--sync {way} cannot be loaded: {error}") from error
    more = {"compress": compress} if way == "mpi4py" else {}
    return cast(Sync, made_by(network, group, optimizer, options, **more))
