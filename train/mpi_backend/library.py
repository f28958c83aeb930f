"""mpi4py's MPI with the settings that Open MPI needs, and waiting for it. Importing it initialises MPI."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from .exceptions import TimedOutError

# Open MPI waits in a loop. Where a core has other work, the loop must offer the core, or a waiting rank
# delays the rank that it waits for: beside other programs, all_reduce of 16 MiB took 3 times as long without
# this. The fastest calls up to 64 KiB took as long as without. Open MPI itself does so only where the ranks
# outnumber the slots.
os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")

from mpi4py import MPI

__all__ = ["MPI", "abort_job", "complete", "in_use", "wait_for_all_ranks", "wait_until"]

in_use: list[Any] = []
"""Containers of what MPI may write to, which outlive their group, and Python itself: so does MPI_Finalize."""
ctypes.pythonapi.Py_IncRef(ctypes.py_object(in_use))

SPIN = 0.001  # seconds of testing without sleep: data from the same host arrives within that time
NAP = 0.0001  # seconds of sleep between two tests after that

# Bytes from which the ranks wait for each other before they exchange data: that takes microseconds, the data
# hundreds of them.
LARGE = 2**23


def abort_job(status: int) -> NoReturn:
    """End every rank of the job with the exit status `status`, without running exit handlers.

    MPI_Finalize is such a handler, and waits for the other ranks.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it is closed
            stream.flush()
    if MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.COMM_WORLD.Abort(status)
    os._exit(status)


def wait_for_all_ranks(comm: MPI.Intracomm, size: int) -> None:
    """Before a collective of `size` bytes, wait until every rank has entered it, if `size` is large.

    MPI waits in a loop. A rank that waits there for a bucket of gradients would occupy the core that another
    rank needs to compute its own. For small collectives this would cost more than it saves.
    """
    if size >= LARGE:
        complete(comm.Ibarrier(), float("inf"), "waiting for all ranks")


def complete(request: MPI.Request, seconds: float, what: str) -> None:
    """Return once `request` is complete; raises TimedOutError after `seconds`."""
    wait_until(request.Test, seconds, what)


def wait_until(done: Callable[[], bool], seconds: float, what: str) -> None:
    """Call `done` until it returns true; raises TimedOutError, which names `what`, after `seconds`."""
    started = time.monotonic()
    while not done():
        waited = time.monotonic() - started
        if waited > seconds:
            raise TimedOutError(f"{what} has Timed out after {seconds:g} s: another rank did not take part")
        if waited < SPIN:
            # Offers the core to other threads. time.sleep(0) takes longer to come back than a megabyte takes
            # to arrive: all_reduce of 1 MiB took 1.4 times as long with it.
            os.sched_yield()
        else:
            time.sleep(NAP)
