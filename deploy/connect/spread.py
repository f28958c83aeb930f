"""Brings large files to hosts, each through a tree of hosts: this machine sends each file only once.

A file goes to a first host, and from there through the tree (`relay`) while it still arrives. If this breaks
off, what has arrived stays on the hosts, and the next time goes on from there.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from ..errors import MusterError
from .cluster import Cluster
from .fanout import ask_every
from .relay import ancestors, by_what_is_there
from .reports import Fed, ImageGot, ImageHave, ImageStuck, Lost, Report
from .requests.request import FilesServed, Nothing, Request

ANSWER_SECONDS = 60.0
SILENCE_SECONDS = 90.0  # without a report of any host that still needs something
FROZEN_SECONDS = 20.0  # a working agent reports every 2 s, also while it receives something
PIECE = 1 << 20
PIECES_AT_ONCE = 8
Tell = Callable[[int, int], None]


class File(NamedTuple):
    """A file of this machine, by its SHA-256, with its bytes."""

    digest: str
    size: int
    path: Path


@dataclass(frozen=True)
class Requests:
    """The requests by which a kind of files goes to hosts."""

    serve: Request[FilesServed]
    take: Request[Nothing]
    complete: Request[Nothing]
    pull: Request[Nothing]


class Spread:
    """Brings files to hosts. Only `_feed` runs on its own thread, all else on the caller's thread.

    `tell`: gets the bytes that are on hosts, and the bytes that shall be there. A class of its own may let
    each host go on when its files are there (`_arrived`), and handle more reports (`_take_other`).
    """

    after_seconds = SILENCE_SECONDS
    """The longest silence while a host works on what has arrived."""

    def __init__(self, cluster: Cluster, requests: Requests, tell: Tell) -> None:
        self.cluster, self._requests, self.tell = cluster, requests, tell
        self.sent = 0
        """The bytes that left this machine."""
        self.errors: dict[str, str] = {}
        """The hosts that did not get their files, and why."""
        self._word = secrets.token_hex(16)
        self._ports: dict[str, int] = {}
        self._have: dict[tuple[str, str], int] = {}
        self._files: dict[str, dict[str, File]] = {}
        self._waiting: dict[str, set[str]] = {}
        self._working: set[str] = set()
        """The hosts that have their files, and work on them."""
        self._stuck: SimpleQueue[tuple[str, File] | None] = SimpleQueue()

    def spread(self, files: Sequence[File], needed: Mapping[str, Sequence[str]]) -> None:
        """Bring to each host the files of the digests that it needs, in the order of `files`."""
        by_digest = {file.digest: file for file in files}
        for host, digests in needed.items():
            self._files[host] = {digest: by_digest[digest] for digest in digests}
            self._waiting[host] = set(digests)
        self._serve()
        threading.Thread(target=self._feed, args=(files,), daemon=True).start()
        for host in [host for host, missing in self._waiting.items() if not missing]:
            self._complete(host)
        self._watch()
        self._stuck.put(None)

    def _arrived(self, host: str) -> bool:
        """All files of a host are there; returns whether the host now works on them."""
        return False

    def _take_other(self, host: str, report: Report) -> bool:
        """Handle a report that is not about files; returns whether it has a place here."""
        return False

    def _serve(self) -> None:
        """Let each host that lacks a file serve the others, and learn how much of each file it has."""
        channels = {host: self.cluster.channels[host] for host in self._files}

        def words(host: str) -> dict[str, Any]:
            return {"host": host, "digests": list(self._files[host]), "word": self._word}

        served = ask_every(channels, self._requests.serve, ANSWER_SECONDS, words).require_all()
        for host, answer in served.items():
            self._ports[host] = answer.port
            self._have |= {(host, digest): answer.have.get(digest, 0) for digest in self._files[host]}

    def _addresses(self, host: str) -> list[tuple[str, str, int]]:
        known = next(other for other in self.cluster.hosts if other.name == host)
        return [(host, address, self._ports[host]) for address in self.cluster.addresses(known)]

    # -- from here --

    def _feed(self, files: Sequence[File]) -> None:
        """Send each file to a first host; then the files that no other host could supply."""
        for file in files:
            needing = [host for host, wanted in self._files.items() if file.digest in wanted]
            hosts = by_what_is_there({host: self._have[host, file.digest] for host in needing})
            if hosts:
                self._pass_on(file, hosts)
                self._give(hosts[0], file)
        while stuck := self._stuck.get():
            self._give(*stuck)

    def _pass_on(self, file: File, hosts: list[str]) -> None:
        """Let every host but the first get the file from the hosts above it in the tree, beginning now."""
        for host, chain in ancestors(hosts).items():
            sources = [source for giver in chain for source in self._addresses(giver)]
            channel = self.cluster.channels[host]
            channel.post(self._requests.pull, digest=file.digest, bytes=file.size, sources=sources)

    def _give(self, host: str, file: File) -> None:
        """Send a file to a host, and report to the other thread how that went."""
        channel = self.cluster.channels[host]
        try:
            self._send(host, file)
        except (MusterError, OSError) as error:
            channel.report(Fed(file.digest, error.reason if isinstance(error, MusterError) else str(error)))
        else:
            channel.report(ImageGot(file.digest))

    def _send(self, host: str, file: File) -> None:
        channel, offset = self.cluster.channels[host], self._have[host, file.digest]
        under_way: deque[Future[Nothing]] = deque()
        with file.path.open("rb") as content:
            content.seek(offset)
            while piece := content.read(PIECE):
                under_way.append(channel.post(self._requests.take, piece, digest=file.digest, offset=offset))
                offset += len(piece)
                self.sent += len(piece)
                if len(under_way) == PIECES_AT_ONCE:
                    channel.wait(under_way.popleft(), ANSWER_SECONDS)
                channel.report(ImageHave(file.digest, offset))
        for future in under_way:
            channel.wait(future, ANSWER_SECONDS)
        channel.ask(self._requests.complete, digest=file.digest, seconds=ANSWER_SECONDS)

    # -- what hosts say --

    def _watch(self) -> None:
        heard = time.monotonic()
        while self._waiting or self._working:
            silence = self.after_seconds if self._working else SILENCE_SECONDS
            try:
                event = self.cluster.events.get(timeout=1.0)
            except Empty:
                self._cut_off_the_silent()
                if time.monotonic() - heard > silence:
                    for host in [*self._waiting, *self._working]:
                        self._lose(host, f"nothing arrived for {silence:.0f} s")
                continue
            heard = time.monotonic()
            if event.host in {*self._waiting, *self._working}:
                self._take(event.host, event.report)
            self.tell(*self._progress())

    def _cut_off_the_silent(self) -> None:
        """Give up frozen hosts: they receive nothing, and what is sent to them would keep others waiting."""
        for host in [*self._waiting, *self._working]:
            channel = self.cluster.channels[host]
            if channel.silent_for() > FROZEN_SECONDS:
                self._lose(host, f"silent for {FROZEN_SECONDS:.0f} s: frozen, or cut off from the network")
                channel.give_up()
                channel.close()

    def _progress(self) -> tuple[int, int]:
        total = sum(file.size for files in self._files.values() for file in files.values())
        return sum(self._have.values()), total

    def _take(self, host: str, report: Report) -> None:
        """Handle the report of a host about its files. It may only report its own files."""
        match report:
            case ImageHave(digest, have) if digest in self._files[host]:
                self._have[host, digest] = min(have, self._files[host][digest].size)
            case ImageGot(digest) if digest in self._files[host]:
                self._got(host, digest)
            case ImageStuck(digest, have) if digest in self._files[host]:
                # No peer can supply it: the driver sends it.
                self._have[host, digest] = min(have, self._files[host][digest].size)
                self._stuck.put((host, self._files[host][digest]))
            case Fed(error=error):
                self._lose(host, error)
            case Lost(reason):
                nonsense = reason.kind == "host.nonsense"
                gone = "the SSH connection to it is gone; what has arrived there is kept: push again"
                self._lose(host, reason.reason if nonsense else gone)
            case _ if not self._take_other(host, report):
                self._lose(host, "it sent a report that has no place in a push")

    def _got(self, host: str, digest: str) -> None:
        self._have[host, digest] = self._files[host][digest].size
        self._waiting.get(host, set()).discard(digest)
        if host in self._waiting and not self._waiting[host]:
            self._complete(host)

    def _complete(self, host: str) -> None:
        del self._waiting[host]
        if self._arrived(host):
            self._working.add(host)

    def _lose(self, host: str, reason: str) -> None:
        self._waiting.pop(host, None)
        self._working.discard(host)
        self.errors[host] = reason
