"""The driver's input for rank 0, its signals for every rank, and the output files of ranks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.fanout import ask_every
from ..connect.requests.launch import OUTPUTS, SIGNAL, STDIN, Written

PART = 1 << 16  # bytes; small enough to be written to a host that reads nothing any more


class StdinFeeder:
    """Reads a file descriptor from the start of rank 0 on and sends it, in the end an empty part.

    Like mpirun it sends part by part, each when the last was read. So input that rank 0 does not read stays
    in its source, and neither this machine nor the host has to hold it.
    """

    def __init__(self, source: int) -> None:
        self._source = source
        self._sent = self._over = False
        self._taken = threading.Event()

    def begin(self, rank: int, channel: Channel) -> None:
        """Begin to send: the rank has started on the host of this channel."""
        threading.Thread(target=self._pass_on, args=(rank, channel), name="stdin", daemon=True).start()

    def taken(self, *, still_read: bool) -> bool:
        """Note that the rank has read the last part, and may read more. False if nothing was sent."""
        if not self._sent or self._over:
            return False
        self._sent, self._over = False, not still_read
        self._taken.set()
        return True

    def _pass_on(self, rank: int, channel: Channel) -> None:
        while not self._over:
            try:
                part = os.read(self._source, PART)
            except OSError:  # it was closed
                part = b""
            self._sent = True
            self._taken.clear()
            channel.post(STDIN, part, rank=rank)
            if not part:
                return
            self._taken.wait()


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
        if answer.beside.files or answer.out.files:
            by_folder.setdefault(answer.folder, (name, answer))
    return dict(by_folder.values())
