"""A c10d backend on MPI for any PyTorch, in Python: `import muster.train.mpi_backend`, then `register()`.

    register.py         the names that init_process_group knows it by
    group.py            the process group: every method that torch.distributed calls
    collectives.py      what each collective does, in calls of MPI; sparse.py: of sparse tensors
    exchange.py         gather, scatter and all_to_all, as messages between pairs
    messages.py         the messages of a group that are under way; point_to_point.py: one of them
    reduction.py        torch's reduce operations as MPI's; half.py: those that MPI lacks
    buffers.py          tensors as MPI sees them: memory, count, datatype
    caller.py           does the caller wait
    lane.py             the collectives of a group, in order, run by whoever waits or by a thread
    work.py             what a caller holds in its hands meanwhile
    watchdog.py         ends the job when a collective waits for too long
    agreement.py        in debug mode: do all ranks mean the same collective
    profiling.py        collectives as events in torch's profiler

Imports go one way, from the bottom of this list to its top.
"""

from .errors import MpiBackendError, TimedOutError
from .register import NAME, register

__all__ = ["NAME", "MpiBackendError", "TimedOutError", "register"]
