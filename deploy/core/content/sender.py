"""Sends files to hosts from here, and lets hosts fetch them from each other."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue

from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.pipe import LostError
from ..connect.reports import FileSent
from ..connect.requests.request import Nothing
from ..errors import MusterError
from .files import ANSWER_SECONDS, ActiveTransfer, Transfer, ancestors
from .messages import BLOB_COMPLETE, BLOB_PULL, BLOB_TAKE, FilesServed

# The unconfirmed data on its way to one host: an interruption loses only this.
PIECE, PIECES_AT_ONCE = 1 << 18, 8


class Sender:
    """Sends this machine's files in a thread, one after the other. `lost`: the hosts that dropped out."""

    def __init__(self, cluster: Cluster, served: Mapping[str, FilesServed], lost: Collection[str]) -> None:
        self._cluster, self._served, self._lost = cluster, served, lost
        self.sent = 0
        """The bytes that left this machine."""
        self._unconfirmed: dict[str, deque[Future[Nothing]]] = {host: deque() for host in served}
        self._tasks: SimpleQueue[tuple[str, ActiveTransfer] | None] = SimpleQueue()

    @contextmanager
    def sending(self) -> Iterator[None]:
        self._tasks = tasks = SimpleQueue[tuple[str, ActiveTransfer] | None]()
        threading.Thread(target=self._work_off, args=(tasks,), daemon=True).start()
        try:
            yield
        finally:
            tasks.put(None)

    def send(self, active: ActiveTransfer, host: str = "") -> None:
        """Send a file to the first of its hosts, from which the others get it, or to one host alone."""
        self._tasks.put((host, active))

    def start_tree(self, transfer: Transfer, hosts: Sequence[str]) -> None:
        """Let every host but the first fetch a file from the hosts above it in the tree."""
        for host, chain in ancestors(hosts).items():
            self.pull(host, transfer, chain)

    def pull(self, host: str, transfer: Transfer, sources: Iterable[str]) -> None:
        """Let a host fetch a file from the first of these hosts that can send it."""
        addresses = [address for source in sources for address in self._addresses(source)]
        self._cluster.channels[host].post(
            BLOB_PULL, digest=transfer.digest, bytes=transfer.size, sources=addresses, **transfer.arguments
        )

    def _addresses(self, host: str) -> list[tuple[str, str, int]]:
        served = self._served[host]
        addresses = self._cluster.data_addresses(host) or served.addresses
        return [(host, address, served.port) for address in addresses]

    def _work_off(self, tasks: SimpleQueue[tuple[str, ActiveTransfer] | None]) -> None:
        """Send files from here, each to the first of its hosts, or to one for which no other host has it.

        A write to a frozen host blocks until the other thread cuts it off.
        """
        while task := tasks.get():
            host, active = task
            if not host and (hosts := [name for name in active.in_order() if name not in self._lost]):
                self.start_tree(active.transfer, hosts)
                host = hosts[0]
            if host in active.receivers and host not in self._lost:
                self._send_to(host, active)

    def _send_to(self, host: str, active: ActiveTransfer) -> None:
        """Send a file to a host, and report to the other thread if that failed."""
        channel = self._cluster.channels[host]
        try:
            self._send_file(channel, active.transfer, active.receivers[host].have)
        except (MusterError, OSError, LookupError) as error:
            if not (isinstance(error, LostError) and channel.ended):  # the other thread gets that report
                reason = error.reason if isinstance(error, MusterError) else str(error)
                channel.report(FileSent(active.transfer.digest, error=reason))

    def _send_file(self, channel: Channel, transfer: Transfer, offset: int) -> None:
        under_way, digest = self._unconfirmed[channel.host], transfer.digest
        with transfer.open() as content:
            content.seek(offset)
            while piece := content.read(PIECE):
                while len(under_way) >= PIECES_AT_ONCE:
                    channel.wait(under_way.popleft(), ANSWER_SECONDS)
                future = channel.post(BLOB_TAKE, piece, digest=digest, offset=offset)
                future.add_done_callback(partial(_report_refusal, channel, digest))
                under_way.append(future)
                offset += len(piece)
                self.sent += len(piece)
                channel.report(FileSent(digest, offset))
        channel.post(BLOB_COMPLETE, digest=digest, **transfer.arguments)


def _report_refusal(channel: Channel, digest: str, future: Future[Nothing]) -> None:
    """Report why a host refused a piece, such as a full disk."""
    error = future.exception()
    if isinstance(error, MusterError) and not isinstance(error, LostError):
        channel.report(FileSent(digest, error=error.reason))
