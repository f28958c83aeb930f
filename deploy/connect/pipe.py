"""What a transport provides: a running agent behind two byte streams, and the reason of its end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Protocol

from ..common.frames import Readable, Writable
from ..errors import HostError
from ..hosts.hostfile import Host

PYTHON_FAILED = "it needs Python 3.9 or newer (--python names another), and a login whose shell runs commands"
PYTHON_MISSING = "install Python 3.9 or newer, or name another with --python"
KILLED = 128 + signal.SIGKILL  # what a login shell reports for a process killed by SIGKILL
AGENT_KILLED = "its agent was killed there (SIGKILL)"
SEE_MEMORY = "by the kernel for lack of memory? see dmesg"


class LostError(HostError):
    """The connection to a host's agent is gone."""

    def __init__(self, text: str, remedy: str = "", *, kind: str = "host.lost", host: str = "") -> None:
        super().__init__(kind, text, remedy, host=host)


class Pipe(Protocol):
    """A running agent behind a transport: two byte streams, and the reason of its end."""

    @property
    def reader(self) -> Readable: ...
    @property
    def writer(self) -> Writable: ...
    def last_words(self, said: str = "") -> LostError:
        """Why the agent ended: its exit status and last line of stderr, or else `said`, its last output."""
        ...

    def close(self, *, patient: bool = True) -> None:
        """Cut the lifeline; if patient, wait until everything that was started is ended."""
        ...


OpenPipe = Callable[[Host], Pipe]
