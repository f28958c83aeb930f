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


def ahead(hosts: Sequence[Host], open_pipe: OpenPipe, timings: Timings) -> OpenPipe:
    """Begin to open a pipe to each of these hosts; returns a function that gives each pipe once.

    A second call for a host opens a new pipe. An error of a login is raised by the call for that host. A pipe
    may be left unused: the threads keep no process alive, and the agent behind a pipe ends with this process.
    """
    usual, left = sys.getswitchinterval(), [host.name for host in hosts]
    sys.setswitchinterval(TURN_SECONDS)
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
            left.remove(host.name)
            if not left:
                sys.setswitchinterval(usual)

    for _ in range(min(len(hosts), AT_ONCE)):
        threading.Thread(target=work, daemon=True).start()

    def take(host: Host) -> Pipe:
        future = begun.pop(host.name, None)
        return future.result() if future else opened(host)

    return take
