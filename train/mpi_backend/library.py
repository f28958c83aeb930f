"""mpi4py's MPI, loaded with the settings that Open MPI needs. Importing this module initialises MPI."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

# Open MPI waits in a loop. Where a core has other work, the loop must offer the core, or a waiting rank
# delays the rank that it waits for: beside other programs, all_reduce of 16 MiB took 3 times as long without
# this. The fastest calls up to 64 KiB took as long as without. Open MPI itself does so only where the ranks
# outnumber the slots.
os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")

from mpi4py import MPI

__all__ = ["MPI", "abort_job"]


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
