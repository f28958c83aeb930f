"""How a job ends when a rank fails: all of it, at once, with that rank's exit status.

A rank that raises must not leave through the interpreter's usual exit while the others wait for it in a
collective: `MPI_Finalize` runs there and waits for them in turn, so the job hangs for ever
(https://mpi4py.readthedocs.io/en/stable/mpi4py.run.html). Nor may it leave the process group first, which can
wait for the same collective. It says what happened, on stderr and in a file, and goes; mpirun, torchrun or
spawn.py then end the other ranks.

What a signal ends cannot write: there the launcher has the word. Only a crash (SIGSEGV, SIGABRT ...) leaves
Python's traceback of every thread on stderr. SIGTERM keeps its meaning on purpose: a handler in Python runs
only between two lines of Python, and a rank that waits in a collective is in none.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from .errors import TrainError

# torchrun sets it for each rank, and shows from the files which rank failed first.
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
# A rank whose collective broke is a victim. It speaks after the one that failed, if the launcher lets it.
VICTIM_WAITS = 1.0  # seconds
BROKEN = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


@contextmanager
def fail_together() -> Iterator[None]:
    """Run the block; if it raises, report that on stderr and end every rank, instead of passing it on.

    The exit status is 2 for a TrainError, 130 for Ctrl-C, the block's own for `sys.exit`, else 1.
    `sys.exit(0)` is a normal end and passes.
    """
    faulthandler.enable()
    try:
        yield
    except BaseException as error:
        if isinstance(error, RuntimeError) and any(words in str(error) for words in BROKEN):
            time.sleep(VICTIM_WAITS)
        status = report(error)
        if status != 0:
            write_record(error)
            end_job(status)
        raise


def keep_records_in(folder: Path, rank: int) -> None:
    """Have this rank's failure written to `folder`/errors, unless the launcher has said where."""
    os.environ.setdefault(ERROR_FILE, str(folder.absolute() / "errors" / f"rank-{rank:04d}.json"))


def write_record(error: BaseException) -> None:
    """Write `error` where TORCHELASTIC_ERROR_FILE says, in the format that torchrun reads.

    torch.distributed.elastic.multiprocessing.errors.ErrorHandler writes the same, but not for `sys.exit`.
    """
    if not os.environ.get(ERROR_FILE):
        return
    path = Path(os.environ[ERROR_FILE])
    extra = {"timestamp": str(int(time.time()))}
    if isinstance(error, TrainError):  # torchrun would show the callstack instead of the words
        said = f"error: {error}"
    else:
        said = f"{type(error).__name__}: {error}"
        extra["py_callstack"] = "".join(traceback.format_exception(error))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        message = {"message": said, "extraInfo": extra}
        path.write_text(json.dumps({"message": message}))
    except OSError as failure:
        sys.stderr.write(f"error: cannot write the error record {path}: {failure.strerror}\n")


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
