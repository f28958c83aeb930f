"""A torch.distributed backend on mpi4py: `import muster.train.mpi_backend`, then `register()`.

It imports nothing else of Muster. Other code imports this module, which does not initialise MPI, or
direct.py, which does. Each file imports only from those below it:

    register.py         the names of the backend in torch
    create.py           a new group and its communicator
    process_group.py    the process group: every method that torch.distributed calls
    base_group.py       its identity, how a collective starts, and its end
    direct.py           all_reduce and broadcast on an mpi4py communicator, without a process group
    sparse.py           all_reduce of sparse tensors
    dense.py            the other collectives, in calls of MPI
    plain.py            the same where MPI can use the tensors as they are: the short way of most calls
    large.py            reductions of large tensors on one host, in which a rank that waits sleeps
    exchange.py         gather, scatter and all_to_all, as messages between pairs
    messages.py         send and recv: the messages under way; point_to_point.py: each of them
    reduction.py        torch's reduce operations as MPI's; half.py: those that MPI lacks
    arguments.py        what a caller may pass
    buffers.py          tensors as MPI needs them: stage in, stage out
    order.py            compares at intervals which collectives the ranks have called
    agreement.py        TORCH_DISTRIBUTED_DEBUG=DETAIL: do all ranks call the same collective
    watchdog.py         ends the job when a collective waits too long; watched.py: one group, as it sees it
    presence.py         which ranks wait and which have left, in the key-value store
    monitored.py        monitored_barrier, by the key-value store
    uncompiled.py       keeps torch.compile out of the methods
    work_queue.py       the collectives of a group in order, run by a caller that blocks or by a thread
    work.py             work handles
    streams.py          the streams and devices of tensors on a GPU
    caller.py           does the caller block
    profiling.py        collectives as events in torch's profiler
    recording.py        collectives in the record of a rank
    waiting.py          waiting for MPI without occupying a core
    library.py          mpi4py, with Open MPI's settings
    exceptions.py       the errors
"""

from .exceptions import MismatchError, MpiBackendError, TimedOutError
from .register import NAME, register

__all__ = ["NAME", "MismatchError", "MpiBackendError", "TimedOutError", "register"]
