"""Opens connections to hosts before a command needs them: a login takes as long as importing the rest."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from ..hosts.hostfile import Host
from ..timings import Timings
from .pipe import OpenPipe, Pipe

AT_ONCE = 64
# Seconds that a thread runs before another thread has its turn. With Python's 0.005, each message of a login
# waits that long for the main thread, which imports.
TURN_SECONDS = 0.0005


class _ShortTurns:
    """Threads take short turns while any call of `ahead` logs in, and then turns of the usual length."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logins = 0
        self._usual = 0.0

    def begin(self, logins: int) -> None:
        with self._lock:
            if logins and not self._logins:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(TURN_SECONDS)
            self._logins += logins

    def end(self) -> None:
        """One login is over."""
        with self._lock:
            self._logins -= 1
            if not self._logins:
                sys.setswitchinterval(self._usual)


_turns = _ShortTurns()


def ahead(hosts: Sequence[Host], open_pipe: OpenPipe, timings: Timings) -> OpenPipe:
    """Begin to open a pipe to each of these hosts; returns a function that gives each pipe once.

    A second call for a host opens a new pipe. An error of a login is raised by the call for that host. A pipe
    may be left unused: the threads keep no process alive, and the agent behind a pipe ends with this process.
    """
    _turns.begin(len(hosts))
    begun: dict[str, Future[Pipe]] = {host.name: Future() for host in hosts}
    waiting = deque((host, begun[host.name]) for host in hosts)

    def opened(host: Host) -> Pipe:
        with timings.part("connection", host.name):
            return open_pipe(host)

    def work() -> None:
        while True:
            try:
                host, future = waiting.popleft()
            except IndexError:
                return
            try:
                future.set_result(opened(host))
            except BaseException as error:  # noqa: BLE001  # it is raised where the pipe is asked for
                future.set_exception(error)
            _turns.end()

    for _ in range(min(len(hosts), AT_ONCE)):
        threading.Thread(target=work, daemon=True).start()

    def take(host: Host) -> Pipe:
        future = begun.pop(host.name, None)
        return future.result() if future else opened(host)

    return take
