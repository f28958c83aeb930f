"""Waiting for MPI without taking a core for it: look often at first, then less and less."""

from __future__ import annotations

import os
import time

from ..job.mpi_world import MPI
from .errors import TimedOutError

SPIN = 0.001  # seconds of looking all the time: what is on its way on one host arrives within
NAP = 0.0001  # seconds between two looks after that

# Bytes from which ranks meet before they exchange data: a meeting takes microseconds, the data a hundred.
LARGE = 2**23


def meet(comm: MPI.Intracomm, size: int) -> None:
    """Wait until every rank has come to a collective of `size` bytes, without taking a core, if it is large.

    MPI waits in a loop. A rank that waits with a bucket of gradients would so take the core that another one
    needs to fill its own. Small collectives pass at once: for them the meeting would cost too much.
    """
    if size >= LARGE:
        complete(comm.Ibarrier(), float("inf"), "meeting")


def complete(request: MPI.Request, seconds: float, what: str) -> MPI.Status:
    """Return the status of `request` once it is complete; raises TimedOutError after `seconds`."""
    status = MPI.Status()
    started = time.monotonic()
    while not request.Test(status):
        waited = time.monotonic() - started
        if waited > seconds:
            raise TimedOutError(f"{what} has Timed out after {seconds:g} s: another rank did not come")
        if waited < SPIN:
            # Gives the core to who wants it. time.sleep(0) gives it back to the system, which may take longer
            # to return it than a megabyte takes: all_reduce of 1 MiB took 1.4 times as long with it.
            os.sched_yield()
        else:
            time.sleep(NAP)
    return status
