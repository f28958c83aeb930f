"""Takes bundles of chunks to the hosts that lack them, and hears from every host what has arrived."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import Empty
from typing import Any

from ..common.data.scan import Reader
from ..common.os_errors import explain
from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.relay import ancestors, by_what_is_there
from ..connect.reports import DataGot, DataRead, DataStuck, Lost, Report
from ..connect.requests.data import DATA_BUNDLE, DATA_COMPLETE, DATA_FORGET, DATA_PULL, DATA_TAKE, DataServed
from ..connect.requests.hosts import TIME
from ..connect.requests.request import Answer, Nothing, Request
from ..errors import MusterError
from .bundles import Bundle

ANSWER_SECONDS = 60.0
FROZEN_SECONDS, PING_SECONDS = 20.0, 2.0
STALLED_SECONDS = 300.0
# What is on its way to one host and not yet confirmed: all that an interruption loses.
PIECE, PIECES_AT_ONCE = 1 << 18, 8
BUNDLES_AT_ONCE = 16
TRIES = 2  # from other hosts; then from this machine, as often


@dataclass
class _Going:
    """A bundle on its way: the hosts that have it, and those that wait for it, each with its tries."""

    bundle: Bundle
    digest: str
    content: bytes = field(repr=False)
    """The bytes, if they are not read again by their chunks."""
    holders: list[str]
    waiting: dict[str, int]


class Spread:
    """The hosts that take part in a push. `lost`: the hosts that dropped out, and why."""

    def __init__(
        self, cluster: Cluster, served: Mapping[str, DataServed], tell: Callable[[int, int], None]
    ) -> None:
        self._cluster, self._served, self._tell = cluster, served, tell
        self.lost: dict[str, str] = {}
        self.sent = 0
        self._reader: Reader | None = None
        self._going: dict[str, _Going] = {}
        self._again: deque[Bundle] = deque()
        self._unconfirmed: dict[str, deque[Future[Nothing]]] = {host: deque() for host in served}
        self._arrived = self._total = 0
        self._pinged = self._heard = time.monotonic()

    def channel(self, host: str) -> Channel:
        """The channel of a host."""
        return self._cluster.channels[host]

    def answer(self, host: str, request: Request[Answer], seconds: float, **words: Any) -> Answer:
        """The answer of a host that may take long, and reports meanwhile how far it is."""
        channel = self.channel(host)
        future = channel.post(request, **words)
        while not future.done() and host not in self.lost:
            self._hear(PING_SECONDS / 4)
        return channel.wait(future, seconds)

    def bring_file(self, bundle: Bundle, content: bytes, digest: str) -> None:
        """Bring a file that is no chunks, such as a manifest, to the hosts of a bundle."""
        self._start(bundle, content, digest)
        while self._going:
            self._hear(PING_SECONDS)

    def bring(self, bundles: Iterable[Bundle], reader: Reader | None) -> None:
        """Bring every bundle to its hosts; `reader` gives what no host has."""
        waiting = deque(bundles)
        self._reader = reader
        self._arrived, self._total = 0, sum(one.size * len(one.lackers) for one in waiting)
        while waiting or self._again or self._going:
            if (waiting or self._again) and len(self._going) < BUNDLES_AT_ONCE:
                self._open((self._again or waiting).popleft())
                while self._hear(0.0):
                    pass
            else:
                self._hear(PING_SECONDS)

    # -- giving --

    def _open(self, bundle: Bundle) -> None:
        """Send a bundle on its way: from a host that has it, else from here."""
        bundle = replace(bundle, lackers=tuple(host for host in bundle.lackers if host not in self.lost))
        givers = [host for host in bundle.givers if host not in self.lost]
        if not bundle.lackers:
            return
        while givers:
            giver = givers.pop(bundle.chunks[0] % len(givers))  # hosts with equal chunks take turns
            try:
                made = self.channel(giver).ask(DATA_BUNDLE, chunks=bundle.chunks, seconds=ANSWER_SECONDS)
                if made.bytes != bundle.size:
                    raise MusterError("it gave other bytes than the manifest says")
            except MusterError as error:
                self._lose(giver, error.reason)
                continue
            self._start(replace(bundle, givers=(giver,)), b"", made.digest)
            return
        if self._reader is None:
            for host in bundle.lackers:
                self._lose(host, "no host is left that could give it the rest; push again")
            return
        self._start(replace(bundle, givers=()), content := self._read(bundle, self._reader), _sum(content))

    @staticmethod
    def _read(bundle: Bundle, reader: Reader) -> bytes:
        try:
            return b"".join(map(reader.read, bundle.chunks))
        except OSError as error:
            raise MusterError(explain(error)) from None

    def _start(self, bundle: Bundle, content: bytes, digest: str) -> None:
        """Let each lacking host fetch a bundle from the hosts above it in the tree; feed the first host."""
        have = {host: self._served[host].have.get(digest, 0) for host in bundle.lackers}
        lackers = by_what_is_there(have)
        if not lackers:
            return
        kept = b"" if bundle.chunks else content
        going = _Going(bundle, digest, kept, [*bundle.givers], dict.fromkeys(lackers, 0))
        if self._going.setdefault(digest, going) is not going:
            for host in lackers:
                self._lose(host, "it wants again what is on its way to it")
            return
        for host, chain in ancestors([*bundle.givers, *lackers]).items():
            self._pull(host, going, chain)
        if not bundle.givers:
            self._feed(lackers[0], going, content, have[lackers[0]])

    def _pull(self, host: str, going: _Going, givers: Iterable[str]) -> None:
        self.channel(host).post(
            DATA_PULL,
            digest=going.digest,
            bytes=going.bundle.size,
            chunks=going.bundle.chunks,
            sources=[source for giver in givers for source in self._addresses(giver)],
        )

    def _addresses(self, host: str) -> list[tuple[str, str, int]]:
        known = next(other for other in self._cluster.hosts if other.name == host)
        port = self._served[host].port
        return [(host, address, port) for address in self._cluster.addresses(known)]

    def _feed(self, host: str, going: _Going, content: bytes, start: int) -> None:
        """Send a bundle from here to one host, from the byte on that it has already."""
        channel, under_way, digest = self.channel(host), self._unconfirmed[host], going.digest
        try:
            for offset in range(min(start, len(content)), len(content), PIECE):
                piece = content[offset : offset + PIECE]
                while len(under_way) >= PIECES_AT_ONCE:
                    channel.wait(under_way.popleft(), ANSWER_SECONDS)
                    self._heard = time.monotonic()
                under_way.append(channel.post(DATA_TAKE, piece, digest=digest, offset=offset))
                self.sent += len(piece)
            under_way.append(channel.post(DATA_COMPLETE, digest=digest, chunks=going.bundle.chunks))
        except MusterError as error:
            self._lose(host, error.reason)

    # -- hearing --

    def _hear(self, seconds: float) -> bool:
        """Take one report of a host, if one comes in time."""
        self._ping()
        try:
            event = self._cluster.events.get(timeout=seconds)
        except Empty:
            return False
        if event.host in self._served and event.host not in self.lost:
            self._take(event.host, event.report)
        return True

    def _ping(self) -> None:
        """Ask for a sign of life, and give up hosts that are silent or get nothing any more."""
        if time.monotonic() - self._pinged < PING_SECONDS:
            return
        self._pinged = time.monotonic()
        for host in [host for host in self._served if host not in self.lost]:
            channel = self.channel(host)
            if channel.silent_for() > FROZEN_SECONDS:
                self._lose(host, f"silent for {FROZEN_SECONDS:.0f} s: frozen, or cut off from the network")
                channel.give_up()
                channel.close()
            else:
                channel.post(TIME)
        if time.monotonic() - self._heard > STALLED_SECONDS:
            for host in {host for going in self._going.values() for host in going.waiting}:
                self._lose(host, f"nothing arrived for {STALLED_SECONDS:.0f} s")

    def _take(self, host: str, report: Report) -> None:
        """Handle the report of a host. It may only report what it waits for."""
        match report:
            case DataRead(done, total):
                self._tell(done, total)
            case DataGot(digest) if host in self._waiting(digest):
                self._got(host, self._going[digest], report)
            case DataStuck(digest) if host in self._waiting(digest):
                self._help(host, self._going[digest], report)
            case Lost(reason):
                nonsense = reason.kind == "host.nonsense"
                gone = "the SSH connection to it is gone; what has arrived there is kept: push again"
                self._lose(host, reason.reason if nonsense else gone)
            case _:
                self._lose(host, "it sent a report that has no place in a push")

    def _waiting(self, digest: str) -> Iterable[str]:
        return self._going[digest].waiting if digest in self._going else ()

    def _got(self, host: str, going: _Going, report: DataGot) -> None:
        self._heard = time.monotonic()
        givers = going.bundle.givers
        if report.error and report.wrong and givers:
            # Not this host's fault: what it was given has the digest that the giver named.
            self._lose(givers[0], "it gave chunks that are not what the manifest says")
            self._again.append(replace(going.bundle, lackers=(host,), givers=()))
        elif report.error:
            self._lose(host, report.error)
        else:
            going.holders.append(host)
            self._arrived += going.bundle.size
            if self._total:
                self._tell(self._arrived, self._total)
        going.waiting.pop(host, None)
        self._close(going)

    def _help(self, host: str, going: _Going, report: DataStuck) -> None:
        """Give a host a bundle in another way: from hosts that have it by now, else from here."""
        going.waiting[host] += 1
        holders = [holder for holder in going.holders if holder not in self.lost]
        content = going.content
        if holders and going.waiting[host] <= TRIES:
            self._pull(host, going, reversed(holders))
            return
        if going.bundle.chunks and self._reader and going.waiting[host] <= 2 * TRIES:
            content = self._read(going.bundle, self._reader)
        if _sum(content) == going.digest:
            self._feed(host, going, content, report.have)
        else:
            self._lose(host, report.text)

    def _lose(self, host: str, reason: str) -> None:
        self.lost.setdefault(host, reason)
        for going in list(self._going.values()):
            going.waiting.pop(host, None)
            self._close(going)

    def _close(self, going: _Going) -> None:
        """Let the hosts remove a bundle that all of them have. Earlier, another host may still read it."""
        if going.waiting or self._going.get(going.digest) is not going:
            return
        del self._going[going.digest]
        if going.bundle.chunks:
            for host in going.holders:
                if host not in self.lost:
                    with contextlib.suppress(MusterError):
                        self.channel(host).post(DATA_FORGET, digests=[going.digest])


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
