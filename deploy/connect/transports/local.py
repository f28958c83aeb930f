"""An agent on the driver's own machine, below the driver: what `localhost` in a hosts file means."""

from __future__ import annotations

import os
import signal
import sys

from ...errors import HostError
from ..bootstrap import BOOTSTRAP
from ..pipe import AGENT_KILLED, PYTHON_FAILED, SEE_MEMORY, LostError
from .process import ProcessPipe


class LocalPipe(ProcessPipe):
    """An agent as a child process."""

    def __init__(self, python: str | None) -> None:
        try:
            named = os.path.expanduser(python or sys.executable)  # noqa: PTH111  # Path raises for no such user
            super().__init__([named, "-c", BOOTSTRAP])
        except OSError as error:
            raise HostError(
                "python.missing",
                f"--python {python}: {error.strerror}",
                "install Python 3.9 or newer, or name another with --python",
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
