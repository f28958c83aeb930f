"""Hosts that stay connected from one attempt of a job to the next, with ranks or without any."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable
from functools import partial
from queue import Empty, SimpleQueue

from ..errors import MusterError
from ..hosts.host_facts import Facts
from ..hosts.hostfile import Host
from .channel import Channel
from .fanout import in_thread, on_every
from .inbox import Inbox
from .listener import Listener
from .pipe import OpenPipe
from .reports import Event, Lost, StopAsked
from .requests.hosts import FACTS


class KeptConnections:
    """Connected hosts with their facts, and the queue into which they report. A cluster takes them over."""

    def __init__(self, events: Inbox) -> None:
        self.events = events
        self._channels: dict[str, tuple[Channel, Facts]] = {}
        self.taken: set[str] = set()
        """The hosts that were taken over."""

    @property
    def names(self) -> frozenset[str]:
        """The hosts that were not taken over yet."""
        return frozenset(self._channels)

    def add(self, channel: Channel, facts: Facts) -> None:
        """Keep a host, which reports to this queue from now on."""
        channel.report_to(self.events)
        self._channels[channel.host] = channel, facts

    def pass_on(self, unread: Iterable[Event]) -> None:
        """Add the requests to stop the job, of unread reports."""
        for event in unread:
            if isinstance(event.report, StopAsked):
                self.events.put(event, wait=False)

    def take(self, host: str) -> tuple[Channel, Facts] | None:
        """Take a host over; None for one that is not here, or whose connection is gone."""
        kept = self._channels.pop(host, None)
        if kept and kept[0].ended:
            close_quietly(kept[0])
            return None
        if kept:
            self.taken.add(host)
        return kept

    def close(self) -> None:
        """Cut the lifelines of the hosts that were not taken over."""
        left = {host: channel for host, (channel, _) in self._channels.items()}
        self._channels.clear()
        on_every(left, lambda host: close_quietly(left[host]))


def close_quietly(channel: Channel) -> None:
    """Close a connection whose end is no report about the job."""
    channel.report_to(Inbox())
    channel.close()


PAUSES = (2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds before each try to connect to a lost host; the last is repeated."""
FACTS_SECONDS = 30.0


class SpareConnections(Listener):
    """Spare hosts, and lost hosts that answer again: they have no rank, and the next attempt takes them over.

    A lost one does not concern the attempt that runs.
    """

    def __init__(self) -> None:
        super().__init__(Inbox())
        self._facts: dict[str, Facts] = {}
        self._arrivals: SimpleQueue[tuple[Channel, Facts]] = SimpleQueue()
        self._over = threading.Event()

    def add(self, channel: Channel, facts: Facts) -> None:
        """Hold a host from now on."""
        channel.report_to(self.events)
        channel.silence = self.losses
        self.channels[channel.host], self._facts[channel.host] = channel, facts

    def lost(self) -> dict[str, str]:
        """The hosts that were lost since the last call, each with the reason; to be called every 2 s."""
        found: dict[str, str] = {}
        while event := self.hear(0.0):
            if isinstance(event.report, Lost) and (channel := self.channels.pop(event.host, None)):
                self.silent.pop(event.host, None)
                in_thread(channel.close)
                found[event.host] = event.report.reason.reason
        return found

    def seek(self, host: Host, open_pipe: OpenPipe) -> None:
        """Try to connect to a lost host, in a thread, until it answers."""
        in_thread(partial(self._seek, host, open_pipe))

    def arrived(self) -> list[str]:
        """The sought hosts that have answered since the last call. They are held from now on."""
        names: list[str] = []
        with contextlib.suppress(Empty):
            while True:
                channel, facts = self._arrivals.get_nowait()
                self.add(channel, facts)
                names.append(channel.host)
        return names

    def hand_to(self, kept: KeptConnections) -> None:
        """Let the next attempt take these hosts over, and seek no more."""
        self._over.set()
        self.arrived()
        for host, channel in self.channels.items():
            kept.add(channel, self._facts[host])
        self.channels.clear()

    def close(self) -> None:
        """Cut the lifelines of the hosts that no attempt has taken over."""
        kept = KeptConnections(self.events)
        self.hand_to(kept)
        kept.close()

    def _seek(self, host: Host, open_pipe: OpenPipe) -> None:
        for pause in itertools.chain(PAUSES, itertools.repeat(PAUSES[-1])):
            if self._over.wait(pause):
                return
            with contextlib.suppress(MusterError):
                channel = Channel(host.name, open_pipe(host), Inbox())
                try:
                    found = channel, channel.wait(channel.post(FACTS), FACTS_SECONDS)
                except MusterError:
                    channel.close()
                    continue
                self._arrivals.put(found)
                return
