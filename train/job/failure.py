"""How a job ends when a rank fails: every rank ends at once, and the job has the failed rank's exit status.

A rank that raises must not leave through the interpreter's usual exit while the others wait for it in a
collective: `MPI_Finalize` runs there and waits for them in turn, so the job hangs
(https://mpi4py.readthedocs.io/en/stable/mpi4py.run.html). Nor may it leave the process group first, which can
wait for the same collective. It reports the error, on stderr and in a file, and exits; mpirun, torchrun or
spawn.py then end the other ranks. Outside of a training's steps (preemption.py) there is no handler for
SIGTERM: a rank that waits in a collective would not run it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import select
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NoReturn


class TrainError(Exception):
    """A mistake that the user can fix: plain lines that say what is wrong and what to do.

    It ends the job with status 2, without a traceback. In a single process it goes to the caller; if nothing
    catches it, it ends the process in the same way.
    """


Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def _without_traceback(hook: Hook) -> Hook:
    """Return a hook for exceptions that nothing catches, which shows a TrainError, and passes on others."""

    def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, TrainError):
            # Past the hook of torch.distributed, which replaces sys.stderr and loses what it took at an exit.
            with contextlib.redirect_stderr(sys.__stderr__):
                status = report(error)
            raise SystemExit(status)
        hook(kind, error, trace)

    return shown


sys.excepthook = _without_traceback(sys.excepthook)


# torchrun sets it for each rank, and shows from the files which rank failed first.
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
# A rank whose collective broke, because another rank failed, lets that rank report its error first.
VICTIM_WAITS = 1.0  # seconds
BROKEN = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


@contextmanager
def fail_together() -> Iterator[None]:
    """Run the block; if it raises, report the error on stderr and end every rank.

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
    """Have this rank's failure written to `folder`/errors, unless the launcher has chosen a file."""
    os.environ.setdefault(ERROR_FILE, str(folder.absolute() / "errors" / f"rank-{rank:04d}.json"))


def write_record(error: BaseException) -> None:
    """Write `error` to the file TORCHELASTIC_ERROR_FILE, in the format that torchrun reads.

    torch.distributed.elastic.multiprocessing.errors.ErrorHandler writes the same, but not for `sys.exit`.
    """
    if not os.environ.get(ERROR_FILE):
        return
    path = Path(os.environ[ERROR_FILE])
    extra = {"timestamp": str(int(time.time()))}
    if isinstance(error, TrainError):  # torchrun would show the call stack instead of the message
        text = f"error: {error}"
    else:
        text = f"{type(error).__name__}: {error}"
        extra["py_callstack"] = "".join(traceback.format_exception(error))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        message = {"message": text, "extraInfo": extra}
        path.write_text(json.dumps({"message": message}))
    except OSError as failure:
        sys.stderr.write(f"error: cannot write the error record {path}: {failure.strerror}\n")


def report(error: BaseException) -> int:
    """Write `error` to stderr for the user; returns the exit status."""
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
        case BrokenPipeError() if _output_has_no_reader():  # as in `python -m muster.train | head -1`
            pass
        case _:
            traceback.print_exception(error)
    return 1


def _output_has_no_reader() -> bool:
    """Return whether nobody reads this process's output any more."""
    output = select.poll()
    try:
        output.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # it is closed, or no file
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))


def end_job(status: int) -> NoReturn:
    """End this process, and with it the job, without the exit handlers, which could wait for another rank."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader is gone, or it is closed
            stream.flush()
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(status)
    os._exit(status)
