"""What all commands share: the help of common options, and how errors and signals end a command."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from .. import interrupts
from ..common.os_errors import explain
from ..common.users import home
from ..console.terminal import harmless_lines
from ..errors import MusterError, UsageError
from .command import Exit

HELP = {
    "hosts": "the hosts file (default: hosts.txt)",
    "include": "only these hosts: node[1-3],gpu-a",
    "exclude": "not these hosts",
    "python": "the Python on the hosts (default: setup's, else python3; on localhost the Python of Muster)",
}
THE_JOB = "the id of the job, or the end of the id"
NEWEST_JOB = f"{THE_JOB} (default: the newest)"
RUNNING_JOB = f"{THE_JOB} (default: the newest that runs)"
JOB_HOSTS = "a hosts file with the hosts of a job that was not launched from here (default: hosts.txt)"
RUNS = "the folder that holds the runs of this machine (default: runs)"
RUNS_FOLDER = "runs"
"""The folder of the runs of a command that names none."""
NEW_RUN = "the folder in which to make the folder of this run (default: runs)"
SLOTS = "slots of every host: gpus, cores, auto (GPUs, else cores) or a number (default: the hosts file's)"


def cache_folder() -> Path:
    """The folder of this machine for files that can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path(home(), ".cache"), "muster")


@contextlib.contextmanager
def explained(interrupted: str = "interrupted") -> Iterator[None]:
    """Print errors as plain text and exit with their status. SIGTERM, SIGHUP and SIGQUIT act like Ctrl-C.

    A signal after the result of the command is known does not change its status.
    """
    interrupts.begin()
    try:
        yield
    except MusterError as error:
        raise Exit(harmless_lines(str(error)), error.exit_status) from None
    except BrokenPipeError:  # `| head`: deploy/cli/program.py
        raise
    except OSError as error:  # an error of this machine: errors of hosts arrive as a MusterError
        raise Exit(harmless_lines(f"here: {explain(error)}"), 1) from None
    except KeyboardInterrupt as stop:
        if (status := interrupts.decided()) is not None:
            raise Exit(code=status) from None
        raise Exit(interrupted, 128 + (stop.args or (2,))[0]) from None


def require_rank(rank: int, count: int, option: str = "--rank") -> int:
    """The rank, if a job of so many ranks has it."""
    if not 0 <= rank < count:
        raise UsageError(f"{option} {rank}: the job has the ranks 0 to {count - 1}")
    return rank
