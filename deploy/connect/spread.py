"""Brings files to hosts, each through a tree of hosts: this machine sends each file only once.

A file goes to a first host, and from there through the tree (`relay`) while it still arrives. If no ancestor
can supply a host, another host that has the file does, else this machine. After an interruption, what has
arrived stays, and the next push continues from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from .cluster import Cluster
from .feeder import Feeder
from .parcels import Going, Parcel, Requests, Waiting
from .pipe import why_lost
from .reports import Fed, FileGot, FileHave, FileStuck, Lost, Report
from .requests.request import Answer, FilesServed, Request

HEAR_SECONDS, STALLED_SECONDS = 2.0, 300.0
LEAST_BYTES = 1 << 20  # fewer in STALLED_SECONDS are none, or a host could keep a push from its end
FILES_AT_ONCE = 16
GONE_AND_KEPT = "the SSH connection to it is gone; what has arrived there is kept: push again"
TRIES = 2  # from other hosts; then from this machine, as often
Tell = Callable[[int, int], None]


class Spread:
    """Brings files to hosts, and hears from every host what has arrived.

    `tell`: gets the bytes that are on hosts, and the bytes that shall be there. A subclass may start work on
    a host whose files have arrived (`_arrived`, `working`), handle further reports (`_take_other`), and
    replace a file that its giver cannot give (`_instead`).
    """

    working_seconds = STALLED_SECONDS
    """The longest silence while a host works on what has arrived."""

    def __init__(
        self, cluster: Cluster, requests: Requests, served: Mapping[str, FilesServed], tell: Tell
    ) -> None:
        self.cluster, self.tell = cluster, tell
        self._served = served
        self._found = {host: dict(answer.have) for host, answer in served.items()}
        """How much of files that have not gone yet is on hosts."""
        self.lost: dict[str, str] = {}
        """The hosts that dropped out, and why."""
        self.working: set[str] = set()
        """The hosts that have their files, and work on them."""
        self._going: dict[str, Going] = {}
        self._later: list[Parcel] = []
        """Files with the same bytes as one that is on its way for something else."""
        self._feeder = Feeder(cluster, requests, served, self.lost)
        self._done = self._total = 0
        self._come, self._heard = 0, time.monotonic()
        """The bytes that have come since it was last noted when some came."""

    @property
    def sent(self) -> int:
        """The bytes that left this machine."""
        return self._feeder.sent

    def bring(self, files: Iterable[Parcel], total: int = 0) -> None:
        """Bring every file to its hosts, until none waits. `files` may be made while others are on their way.

        `total`: the bytes of all files on all hosts, for `tell`; zero keeps it silent.
        """
        self._done, self._total, self._heard = 0, total, time.monotonic()
        coming = iter(files)
        with self.cluster.keeping_alive(), self._feeder.feeding():
            parcel = next(coming, None)
            while parcel or self._going or self.working:
                if parcel and len(self._going) < FILES_AT_ONCE:
                    self._start(parcel)
                    while self._hear(0.0):
                        pass
                    parcel = next(coming, None)
                else:
                    self._hear(HEAR_SECONDS)

    def answer(self, host: str, request: Request[Answer], seconds: float, **words: Any) -> Answer:
        """The answer of a host that may take long, and reports meanwhile how far it is."""
        channel = self.cluster.channels[host]
        with self.cluster.keeping_alive():
            future = channel.post(request, **words)
            while not (future.done() or host in self.lost or channel.is_stuck()):
                self._hear(HEAR_SECONDS / 4)
        return channel.wait(future, seconds)

    # -- what another class may know better --

    def _arrived(self, host: str, parcel: Parcel) -> None:
        """A host has a file."""

    def _take_other(self, host: str, report: Report) -> bool:
        """Handle a report that is not about files; returns whether it has a place here."""
        return False

    def _is_right(self, parcel: Parcel) -> bool:
        """Whether a host gives what it should, which is checked here; a host that lies is given up."""
        return True

    def _instead(self, host: str, parcel: Parcel) -> Parcel | None:
        """What a host gets in place of a file that its giver cannot give, or gave wrongly."""
        return None

    # -- giving --

    def _start(self, parcel: Parcel) -> None:
        """Send a file on its way: from its giver, else from here."""
        hosts = [host for host in parcel.hosts if host not in self.lost]
        if parcel.digest in self._going:
            self._later.append(parcel)
        elif hosts:
            waiting = {host: Waiting(self._found[host].pop(parcel.digest, 0)) for host in hosts}
            going = Going(replace(parcel, hosts=tuple(hosts)), [], waiting)
            self._going[parcel.digest] = going
            self._done += sum(one.have for one in waiting.values())
            if parcel.giver:
                going.holders.append(parcel.giver)
                self._feeder.pass_on(going.parcel, [parcel.giver, *going.in_order()])
            else:
                self._feeder.feed(going)

    # -- hearing --

    def _hear(self, seconds: float) -> bool:
        """Take one report of a host, if one comes in time."""
        self._give_up_if_stalled()
        event = self.cluster.hear(seconds)
        if event is None:
            return False
        if event.host in self._served and event.host not in self.lost:
            self._take(event.host, event.report)
            if self._total:
                self.tell(self._done, self._total)
        return True

    def _give_up_if_stalled(self) -> None:
        longest = self.working_seconds if self.working else STALLED_SECONDS
        if time.monotonic() - self._heard > longest:
            for host in {*self.working, *(host for going in self._going.values() for host in going.waiting)}:
                self.lose(host, f"nothing arrived for {longest:.0f} s")

    def _take(self, host: str, report: Report) -> None:
        """Handle the report of a host. It may only report what it waits for."""
        match report:
            case Fed(error=error) if error:
                self.lose(host, error)
            case Fed(digest, have):
                self._note(host, digest, have)
            case FileHave(digest, have) if self._waits(host, digest):
                self._note(host, digest, have)
            case FileGot(digest) if self._waits(host, digest):
                self._got(host, self._going[digest], report)
            case FileStuck(digest) if self._waits(host, digest):
                self._help(host, self._going[digest], report)
            case Lost(reason):
                self.lose(host, why_lost(reason, GONE_AND_KEPT))
            case _ if not self._take_other(host, report):
                self.lose(host, "it sent a report that has no place in a push")

    def _waits(self, host: str, digest: str) -> bool:
        return digest in self._going and host in self._going[digest].waiting

    def _note(self, host: str, digest: str, have: int) -> None:
        """Note how much of a file is on a host."""
        if self._waits(host, digest):
            going = self._going[digest]
            have = min(have, going.parcel.size)
            come = have - going.waiting[host].have
            self._done += come
            self._come += max(0, come)
            going.waiting[host].have = have
            if self._come >= LEAST_BYTES:
                self._come, self._heard = 0, time.monotonic()

    def _got(self, host: str, going: Going, report: FileGot) -> None:
        parcel = going.parcel
        if report.error and not (report.wrong and parcel.giver):
            self.lose(host, report.error)
            return
        if report.error and self._is_right(parcel):
            self.lose(host, f"it called the chunks of {parcel.giver} wrong, and they are right: checked here")
            return
        self._note(host, parcel.digest, 0 if report.error else parcel.size)
        del going.waiting[host]
        if report.error:
            self._replace(host, going)
        else:
            self._heard = time.monotonic()
            going.holders.append(host)
            self._arrived(host, parcel)
        self._close(going)

    def _help(self, host: str, going: Going, report: FileStuck) -> None:
        """Give a host a file in another way: from hosts that have it by now, else from here."""
        self._note(host, report.digest, report.have)
        waiting = going.waiting[host]
        waiting.tries += 1
        holders = [holder for holder in reversed(going.holders) if holder not in self.lost]
        if holders and waiting.tries <= TRIES:
            self._feeder.pull(host, going.parcel, holders)
        elif going.parcel.giver:
            del going.waiting[host]
            self._found[host][report.digest] = waiting.have
            self._replace(host, going, report.text)
            self._close(going)
        elif waiting.tries <= 2 * TRIES:
            self._feeder.feed(going, host)
        else:
            self.lose(host, report.text)

    def _replace(self, host: str, going: Going, reason: str = "no host is left that could give it") -> None:
        if parcel := self._instead(host, going.parcel):
            self._start(parcel)
        else:
            self.lose(host, reason)

    def lose(self, host: str, reason: str) -> None:
        """Give up a host: it gets nothing any more."""
        self.lost.setdefault(host, reason)
        self.working.discard(host)
        for going in list(self._going.values()):
            going.waiting.pop(host, None)
            self._close(going)

    def _close(self, going: Going) -> None:
        """Let the hosts remove a file that all of them have. Earlier, another host may still read it."""
        parcel = going.parcel
        if going.waiting or self._going.get(parcel.digest) is not going:
            return
        del self._going[parcel.digest]
        if forget := parcel.forget:
            for host in [holder for holder in going.holders if holder not in self.lost]:
                self.cluster.channels[host].post(forget, digests=[parcel.digest])
        same = [later for later in self._later if later.digest == parcel.digest]
        self._later = [later for later in self._later if later not in same]
        for later in same:
            self._start(later)
