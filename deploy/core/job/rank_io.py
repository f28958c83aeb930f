"""The driver's signals for every rank."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ..connect.cluster import Cluster
from ..connect.requests.launch import SIGNAL

PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


class SignalRelay:
    """SIGUSR1 and SIGUSR2 to this process, until they are passed on to every rank of the job.

    A scheduler that takes hosts away sends such a signal first (sbatch --signal=B:USR1@60). A program that
    handles the signal saves a checkpoint and exits; `muster.train` exits with status 75. The job does not
    start again after that.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._got: list[int] = []
        self.names: list[str] = []
        """Those that were passed on."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals meanwhile; only a process's main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {number: signal.signal(number, self._take) for number in PASSED_ON}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._got.append(number)  # a handler must not wait for a lock that its thread may hold

    def pass_on(self) -> None:
        """Ask every host to send the signals to its ranks."""
        while self._got:
            name = signal.Signals(self._got.pop(0)).name
            self.names.append(name)
            for channel in self._cluster.channels.values():
                channel.post(SIGNAL, name=name)
