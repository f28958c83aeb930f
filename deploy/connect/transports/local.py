"""An agent on the driver's own machine, below the driver: what `localhost` in a hosts file means."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys

from ...errors import HostError
from ..bootstrap import BOOTSTRAP
from ..pipe import AGENT_KILLED, PYTHON_FAILED, PYTHON_MISSING, SEE_MEMORY, LostError
from .process import ProcessPipe

# The agent's source fits into its pipe as a whole (Linux's default is 64 KiB): a host that reads nothing, or
# prints before it reads, must not keep the driver from noticing it. ssh takes in 2 MiB at once anyway.
ROOM = 1 << 18


class LocalPipe(ProcessPipe):
    """An agent as a child process."""

    remote = False

    def __init__(self, python: str | None) -> None:
        try:
            named = os.path.expanduser(python or sys.executable)  # noqa: PTH111  # Path raises for no such user
            super().__init__([named, "-c", BOOTSTRAP])
            with contextlib.suppress(OSError, AttributeError):  # of a user who has many pipes; elsewhere
                fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, ROOM)
        except OSError as error:
            raise HostError(
                "python.missing",
                f"--python {python}: {error.strerror}",
                PYTHON_MISSING,
            ) from None

    def last_words(self, said: str = "") -> LostError:
        """The last line of stderr, and the exit status."""
        status, said = self.end(said)
        if status == -signal.SIGKILL:
            return LostError(AGENT_KILLED, SEE_MEMORY, kind="agent.killed")
        return LostError(
            f"the agent ended with status {status}: {said}",
            PYTHON_FAILED,
            kind="python.failed",
        )
