"""The driver's signals for every rank, and the output files of ranks."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from ..connect.cluster import Cluster
from ..connect.fanout import ask_every
from ..connect.requests.launch import OUTPUTS, SIGNAL, Written

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


OUTPUTS_SECONDS = 5.0


def outputs(cluster: Cluster) -> Mapping[str, Written]:
    """What the program has written on each host, if anything and if the host answers in time.

    The verdict does not wait long for it. A folder that hosts share counts once.
    """
    channels = {
        name: channel
        for name, channel in cluster.channels.items()
        if name not in cluster.silent and not channel.ended
    }
    by_folder: dict[str, tuple[str, Written]] = {}
    for name, answer in ask_every(channels, OUTPUTS, OUTPUTS_SECONDS).results.items():
        if any(files.files or files.more for files in (answer.beside, answer.out)):
            by_folder.setdefault(answer.folder, (name, answer))
    return dict(by_folder.values())
