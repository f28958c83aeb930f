"""Hosts that stay connected for the next attempt of a job; they have no rank meanwhile."""

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
from .requests import FACTS

PAUSES = (2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds before each try to connect to a lost host; the last is repeated."""
FACTS_SECONDS = 30.0


class KeptConnections(Listener):
    """Connected hosts with their facts, and the queue into which they report. A cluster takes them over.

    While an attempt runs, these are its spare hosts, and lost hosts that answer again. At its end come the
    hosts on which nothing of it is left.
    """

    def __init__(self, hosts: int = 1) -> None:
        super().__init__(Inbox(hosts))
        self.facts: dict[str, Facts] = {}
        self.taken: set[str] = set()
        """The hosts that were taken over."""
        self._arrivals: SimpleQueue[tuple[Channel, Facts]] = SimpleQueue()
        self._over = threading.Event()

    def add(self, channel: Channel, facts: Facts) -> None:
        """Keep a host, which reports to this queue from now on."""
        channel.report_to(self.events)
        channel.silence = self.losses
        self.channels[channel.host], self.facts[channel.host] = channel, facts

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
        """The sought hosts that have answered since the last call. They are kept from now on."""
        names: list[str] = []
        with contextlib.suppress(Empty):
            while True:
                channel, facts = self._arrivals.get_nowait()
                self.add(channel, facts)
                names.append(channel.host)
        return names

    def end_attempt(self, unread: Iterable[Event]) -> None:
        """Seek no more, and add the requests to stop the job of reports that the attempt has not read."""
        self._over.set()
        self.arrived()
        for event in unread:
            if isinstance(event.report, StopAsked):
                self.events.put(event, wait=False)

    def take(self, host: str) -> tuple[Channel, Facts] | None:
        """Take a host over; None for one that is not here, or whose connection is gone."""
        channel = self.channels.pop(host, None)
        if channel and channel.ended:
            close_quietly(channel)
        elif channel:
            self.taken.add(host)
            return channel, self.facts[host]
        return None

    def close(self) -> None:
        """Cut the lifelines of the hosts that were not taken over."""
        self.end_attempt(())
        left = dict(self.channels)
        self.channels.clear()
        on_every(left, lambda host: close_quietly(left[host]))

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


def close_quietly(channel: Channel) -> None:
    """Close a connection whose end is no report about the job."""
    channel.report_to(Inbox())
    channel.close()
