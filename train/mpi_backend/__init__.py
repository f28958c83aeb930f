"""A torch.distributed backend on mpi4py: `import muster.train.mpi_backend`, then `register()`.

It imports nothing else of Muster. Other code imports this module, which does not initialise MPI, or
direct.py, which does. Each file imports only from those below it:

    process_group.py    the process group: every method that torch.distributed calls
    direct.py           all_reduce and broadcast on an mpi4py communicator, without a process group
    plain.py            collectives where MPI can use the tensors as they are: the short way of most calls
    collectives.py      the same for any tensors
    watchdog.py         ends the job when a collective waits too long; monitored_barrier
    order.py            compares which collectives the ranks have called
    work_queue.py       the collectives of a group in order, and their work handles
    point_to_point.py   send and recv
    reduction.py        torch's reduce operations as MPI's
    arguments.py        what a caller may pass
    buffers.py          tensors as MPI needs them
    recording.py        collectives in torch's profiler and in the record of a rank
    caller.py           does the caller block; keeps torch.compile out
    library.py          mpi4py, with Open MPI's settings, and waiting for it
    exceptions.py       the errors
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist

from .exceptions import MismatchError, MpiBackendError, TimedOutError

__all__ = ["NAME", "MismatchError", "MpiBackendError", "TimedOutError", "register"]

NAME = "muster_mpi"
# The versions that the tests run on; on 2.11 they ran once. torch renamed methods between them, and may do so
# again.
TESTED = ((2, 6), (2, 11), (2, 13), (2, 14), (2, 15))


def register() -> str:
    """Make `init_process_group("muster_mpi")` work, and "mpi" where torch allows it; returns "muster_mpi".

    From torch 2.14 on, the entry point in pyproject.toml calls this without an import, and "mpi" can be
    registered. Before, torch itself refuses that name unless it was built with MPI.
    """
    if hasattr(dist.Backend, NAME.upper()):  # torch 2.6 takes a name once
        return NAME
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version not in TESTED:
        tested = ", ".join(f"{major}.{minor}" for major, minor in TESTED)
        warnings.warn(f"{NAME} was tested with torch {tested}, not {torch.__version__}", stacklevel=2)
    # torch gathers a ShardedTensor on the GPU of a backend for GPUs, also where there is none.
    devices = ["cpu", "cuda"] if torch.cuda.device_count() else ["cpu"]
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=devices)
    if version >= (2, 14) and not dist.is_mpi_available():
        dist.Backend.register_backend("mpi", create, extended_api=True, devices=devices)
    return NAME


def create(options: Any, _: Any = None) -> dist.ProcessGroup:
    """Return the group of `options.global_ranks_in_group`, or of all ranks; only its members call this."""
    from .process_group import create_group  # noqa: PLC0415 - initialises MPI, so only when it is needed

    return create_group(options)
