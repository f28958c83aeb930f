"""Brings files to hosts, each through a tree of hosts: this machine sends each file only once.

A file goes to a first host, and from there through the tree (`ancestors`) while it still arrives. If no
ancestor can supply a host, another host that has the file does, else this machine. After an interruption,
the arrived data stays, and the next push resumes there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.pipe import LostError, why_lost
from ..connect.reports import FileGot, FileHave, FileSent, FileStuck, Lost, Report
from ..connect.requests import Answer, Nothing, Request
from ..errors import MusterError
from ..text.text import duration
from ..waits import waiting
from ..wire.files import open_regular
from .messages import BLOB_COMPLETE, BLOB_FORGET, BLOB_PULL, BLOB_TAKE, FilesServed
from .transfer_state import ANSWER_SECONDS, ActiveTransfer, LocalFile, Receiver, Transfer, ancestors

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


HEAR_SECONDS, STALLED_SECONDS = 2.0, 300.0
LEAST_BYTES = 1 << 20  # fewer in STALLED_SECONDS are none, or a host could keep a push from its end
FILES_AT_ONCE, MOST_QUOTED = 16, 400
GONE_AND_KEPT = "the SSH connection to it is gone; the data that arrived there is kept: try again"
TRIES = 2  # from other hosts; then from this machine, as often
OnProgress = Callable[[int, int], None]


class Transfers:
    """Brings files to hosts, and handles the reports of every host about them.

    `on_progress`: gets the bytes that are on hosts, and the total.
    """

    def __init__(self, cluster: Cluster, served: Mapping[str, FilesServed], on_progress: OnProgress) -> None:
        self.cluster, self._on_progress = cluster, on_progress
        self.arrived: Callable[[str, Transfer], None] = lambda host, transfer: None
        """Called for each host that has a file. It may start work there (`working`)."""
        self.take_other: Callable[[str, Report], bool] = lambda host, report: False
        """Handles a report that is not about files; returns whether it is one of this push."""
        self._served = served
        self._present = {host: dict(answer.have) for host, answer in served.items()}
        """The bytes of each file that a host had before its transfer."""
        self.lost: dict[str, str] = {}
        """The hosts that dropped out, and why."""
        self._stuck: dict[str, str] = {}
        """The hosts that could not read a file from another one, and why the first time."""
        self.working: dict[str, float] = {}
        """The hosts that have their files and work on them, and how long each may be silent meanwhile."""
        self._active: dict[str, ActiveTransfer] = {}
        self._postponed: list[Transfer] = []
        """Transfers of the same bytes as an active one, for another purpose."""
        self._sender = Sender(cluster, served, self.lost)
        self._done = self._total = 0
        self._arrived_bytes, self._heard = 0, time.monotonic()
        """The bytes that have arrived since `_heard`, the time of the last progress."""

    @property
    def sent(self) -> int:
        return self._sender.sent

    @property
    def notes(self) -> list[str]:
        """A line for each host that got a file in another way than planned: an attack may be the reason."""
        return [
            f"note: {host} could not read a file from another host: {why[:MOST_QUOTED]}"
            for host, why in self._stuck.items()
            if host not in self.lost
        ]

    def bring_files(self, files: Iterable[LocalFile], needed: Mapping[str, Collection[str]]) -> None:
        """Bring files of this machine, in their order, to the hosts that need their digests."""
        wanted = [
            Transfer(file.digest, file.size, hosts, partial(open_regular, file.path))
            for file in files
            if (hosts := tuple(host for host, digests in needed.items() if file.digest in digests))
        ]
        self.bring(wanted, sum(transfer.size * len(transfer.hosts) for transfer in wanted))

    def bring(self, files: Iterable[Transfer], total: int = 0) -> None:
        """Bring every file to its hosts, until none waits. `files` may be made while others are on their way.

        `total`: the bytes of all files on all hosts, for `on_progress`, which is not called if it is zero.
        """
        self._done, self._total, self._heard = 0, total, time.monotonic()
        queue = iter(files)
        with self.cluster.keeping_alive(), self._sender.sending():
            transfer = next(queue, None)
            while transfer or self._active or self.working:
                if transfer and len(self._active) < FILES_AT_ONCE:
                    self._start(transfer)
                    while self._hear(0.0):
                        pass
                    transfer = next(queue, None)
                else:
                    self._hear(HEAR_SECONDS)

    def answer(self, host: str, request: Request[Answer], seconds: float, **arguments: Any) -> Answer:
        """The answer of a host to a long request; its reports are handled meanwhile."""
        channel = self.cluster.channels[host]
        with self.cluster.keeping_alive(), waiting(hosts=[host]):
            future = channel.post(request, **arguments)
            while not (future.done() or host in self.lost or channel.is_stuck()):
                self._hear(HEAR_SECONDS / 4)
        return channel.wait(future, seconds)

    # -- sending --

    def _start(self, transfer: Transfer) -> None:
        """Begin a transfer: from its source, else from here."""
        hosts = [host for host in transfer.hosts if host not in self.lost]
        if transfer.digest in self._active:
            self._postponed.append(transfer)
        elif hosts:
            receivers = {host: Receiver(self._present[host].pop(transfer.digest, 0)) for host in hosts}
            active = ActiveTransfer(replace(transfer, hosts=tuple(hosts)), [], receivers)
            self._active[transfer.digest] = active
            self._done += sum(receiver.have for receiver in receivers.values())
            if transfer.source:
                active.complete_on.append(transfer.source)
                self._sender.start_tree(active.transfer, [transfer.source, *active.in_order()])
            else:
                self._sender.send(active)

    # -- reports --

    def _hear(self, seconds: float) -> bool:
        """Take one report of a host, if one comes in time."""
        self._give_up_if_stalled()
        event = self.cluster.hear(seconds)
        if event is None:
            return False
        if event.host in self._served and event.host not in self.lost:
            self._take(event.host, event.report)
            if self._total:
                self._on_progress(self._done, self._total)
        return True

    def _give_up_if_stalled(self) -> None:
        quiet = time.monotonic() - self._heard
        for host, seconds in [*self.working.items()]:
            if quiet > seconds:
                self.lose(host, f"not done after {duration(int(seconds))}")
        if quiet > max([STALLED_SECONDS, *self.working.values()]):
            for host in {host for active in self._active.values() for host in active.receivers}:
                self.lose(host, f"nothing arrived for {STALLED_SECONDS:.0f} s")

    def _take(self, host: str, report: Report) -> None:
        """Handle the report of a host, which may only be about files that it waits for."""
        match report:
            case FileSent(error=error) if error:
                self.lose(host, error)
            case FileSent(digest, have):
                self._note(host, digest, have)
            case FileHave(digest, have) if self._waits(host, digest):
                self._note(host, digest, have)
            case FileGot(digest) if self._waits(host, digest):
                self._got(host, self._active[digest], report)
            case FileStuck(digest) if self._waits(host, digest):
                self._retry(host, self._active[digest], report)
            case Lost(reason):
                self.lose(host, why_lost(reason, GONE_AND_KEPT))
            case _ if not self.take_other(host, report):
                self.lose(host, "protocol error: an unexpected report")

    def _waits(self, host: str, digest: str) -> bool:
        return digest in self._active and host in self._active[digest].receivers

    def _note(self, host: str, digest: str, have: int) -> None:
        """Note how much of a file is on a host."""
        if self._waits(host, digest):
            active = self._active[digest]
            have = min(have, active.transfer.size)
            more = have - active.receivers[host].have
            self._done += more
            self._arrived_bytes += max(0, more)
            active.receivers[host].have = have
            if self._arrived_bytes >= LEAST_BYTES:
                self._arrived_bytes, self._heard = 0, time.monotonic()

    def _got(self, host: str, active: ActiveTransfer, report: FileGot) -> None:
        transfer = active.transfer
        if report.error and not (report.wrong and transfer.source):
            self.lose(host, report.error)
            return
        if report.error and transfer.is_right():
            self.lose(
                host, f"it reported wrong chunks of {transfer.source}; they are right, by the check here"
            )
            return
        self._note(host, transfer.digest, 0 if report.error else transfer.size)
        del active.receivers[host]
        if report.error:
            self._start_replacement(host, active)
        else:
            self._heard = time.monotonic()
            active.complete_on.append(host)
            self.arrived(host, transfer)
        self._close(active)

    def _retry(self, host: str, active: ActiveTransfer, report: FileStuck) -> None:
        """Get a file to a host in another way: from hosts that have it by now, else from here."""
        self._note(host, report.digest, report.have)
        self._stuck.setdefault(host, report.text)
        receiver = active.receivers[host]
        receiver.tries += 1
        sources = [source for source in reversed(active.complete_on) if source not in self.lost]
        if sources and receiver.tries <= TRIES:
            self._sender.pull(host, active.transfer, sources)
        elif active.transfer.source:
            del active.receivers[host]
            self._present[host][report.digest] = receiver.have
            self._start_replacement(host, active, report.text)
            self._close(active)
        elif receiver.tries <= 2 * TRIES:
            self._sender.send(active, host)
        else:
            self.lose(host, report.text)

    def _start_replacement(
        self, host: str, active: ActiveTransfer, reason: str = "no host is left with it"
    ) -> None:
        if transfer := active.transfer.replacement(host):
            self._start(transfer)
        else:
            self.lose(host, reason)

    def lose(self, host: str, reason: str) -> None:
        """Give up a host: it gets no more files."""
        self.lost.setdefault(host, reason)
        self.working.pop(host, None)
        for active in list(self._active.values()):
            active.receivers.pop(host, None)
            self._close(active)

    def _close(self, active: ActiveTransfer) -> None:
        """Let the hosts remove a file that all of them have. Earlier, another host may still read it."""
        transfer = active.transfer
        if active.receivers or self._active.get(transfer.digest) is not active:
            return
        del self._active[transfer.digest]
        if transfer.forget:
            for host in [host for host in active.complete_on if host not in self.lost]:
                self.cluster.channels[host].post(BLOB_FORGET, digests=[transfer.digest])
        same = [postponed for postponed in self._postponed if postponed.digest == transfer.digest]
        self._postponed = [postponed for postponed in self._postponed if postponed not in same]
        for postponed in same:
            self._start(postponed)
