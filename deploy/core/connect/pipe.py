"""The interface of a transport: a running agent behind two byte streams, and the reason of its end."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import Protocol

from ..errors import HostError
from ..hosts.hostfile import Host
from ..wire.frames import Readable
from .bootstrap import agent_source, is_swallowed

PYTHON_FAILED = "it needs Python 3.9 or newer (--python names another), and a login whose shell runs commands"
PYTHON_MISSING = "install Python 3.9 or newer, or name another with --python"
KILLED = 128 + signal.SIGKILL  # the status that a login shell reports after SIGKILL
AGENT_KILLED = "its agent was killed there (SIGKILL)"
SEE_MEMORY = "by the kernel for lack of memory? see dmesg"


class LostError(HostError):
    """The connection to a host's agent is gone."""

    def __init__(self, text: str, remedy: str = "", *, kind: str = "host.lost", host: str = "") -> None:
        super().__init__(kind, text, remedy, host=host)


class SilentError(LostError):
    """A host is silent. `together`: so are all others, which is not its fault."""

    def __init__(self, text: str, remedy: str, *, host: str = "", together: bool = False) -> None:
        super().__init__(text, remedy, kind="host.all-silent" if together else "host.silent", host=host)
        self.together = together


class EndedError(LostError):
    """The process of an agent has ended. No SSH connection lies between: its last words are the reason."""


def why_ended(status: int, text: str, printed: str, python: str) -> LostError:
    """Why the process of an agent has ended. `text`: from its stderr; `printed`: its last output."""
    if status == KILLED:
        return LostError(AGENT_KILLED, SEE_MEMORY, kind="agent.killed")
    if status == 127 and not is_swallowed(text):
        return LostError(f"no {python} there", PYTHON_MISSING, kind="python.missing")
    reason = text.splitlines()[-1].strip() if text else printed or "no message"
    return LostError(f"the agent ended with status {status}: {reason}", PYTHON_FAILED, kind="python.failed")


GONE = "the SSH connection to its agent is gone"
_EXPLAINED = frozenset({"host.protocol-error", "agent.killed"})


def why_lost(error: HostError, otherwise: str = GONE) -> str:
    """Why a host was lost in the middle of its work. The last line of `ssh` then explains nothing."""
    if error.kind in _EXPLAINED:
        return error.reason
    return error.text if isinstance(error, SilentError | EndedError) else otherwise


class CountingWriter:
    """A stream to a host that counts what it has written, for lines of progress.

    `send` writes some bytes at once, and returns their number; it gets at most `most`.
    """

    def __init__(self, send: Callable[[memoryview], int], most: int) -> None:
        self._send, self._most = send, most
        self.written = 0
        """Bytes so far, also of a content that is not yet written to its end."""

    def write(self, content: bytes, /) -> None:
        rest = memoryview(content)
        while rest:
            count = self._send(rest[: self._most])
            self.written += count
            rest = rest[count:]

    def flush(self) -> None:
        """Nothing waits here."""


class Pipe(Protocol):
    """A running agent behind a transport: two byte streams, and the reason of its end."""

    remote: bool
    """Whether a network lies between."""

    @property
    def reader(self) -> Readable: ...
    @property
    def writer(self) -> CountingWriter: ...
    def last_words(self, printed: str = "") -> LostError:
        """Why the agent ended: its exit status and last line of stderr, else `printed`, its last output."""
        ...

    def close(self, *, patient: bool = True) -> None:
        """Cut the lifeline; if patient, wait until the agent has ended everything."""
        ...


OpenPipe = Callable[[Host], Pipe]


def send_source(pipe: Pipe) -> None:
    """Send an agent its modules, unless it has them."""
    with contextlib.suppress(OSError):  # if the agent never starts, `last_words` has the reason
        if not pipe.writer.written:
            pipe.writer.write(agent_source())
            pipe.writer.flush()
