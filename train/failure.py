"""How a job ends when a rank fails: all of it, at once, with that rank's exit status.

A rank that raises must not leave through the interpreter's usual exit while the others wait for it in a
collective: `MPI_Finalize` runs there and waits for them in turn, so the job hangs for ever
(https://mpi4py.readthedocs.io/en/stable/mpi4py.run.html). Nor may it leave the process group first, which can
wait for the same collective. It says what happened and goes; mpirun and torchrun then end the other ranks.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from train.errors import TrainError


@contextmanager
def fail_together() -> Iterator[None]:
    """Run the block; if it raises, report that on stderr and end every rank, instead of passing it on.

    The exit status is 2 for a TrainError, 130 for Ctrl-C, the block's own for `sys.exit`, else 1.
    `sys.exit(0)` is a normal end and passes.
    """
    try:
        yield
    except BaseException as error:
        status = report(error)
        if status != 0:
            end_job(status)
        raise


def report(error: BaseException) -> int:
    """Write what the user needs to know about `error` to stderr; returns the exit status it calls for."""
    match error:
        case TrainError():
            sys.stderr.write("".join(f"error: {line}\n" for line in str(error).splitlines()))
            return 2
        case KeyboardInterrupt():
            return 130
        case SystemExit(code=None):
            return 0
        case SystemExit(code=int(status)):
            return status
        case SystemExit():
            sys.stderr.write(f"{error}\n")
            return 1
    traceback.print_exception(error)
    return 1


def end_job(status: int) -> NoReturn:
    """End this process, and with it the job, past every exit handler that could wait for another rank."""
    sys.stdout.flush()
    sys.stderr.flush()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(status)
    os._exit(status)
