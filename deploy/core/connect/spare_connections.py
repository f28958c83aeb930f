"""Connected hosts of a job that have no rank. The next attempt takes them over.

They are spare hosts, and lost hosts that answer again.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from functools import partial
from queue import Empty, SimpleQueue

from ..errors import MusterError
from ..hosts.host_facts import Facts
from ..hosts.hostfile import Host
from .channel import Channel
from .fanout import in_thread
from .inbox import Inbox
from .kept_connections import KeptConnections
from .listener import Listener
from .pipe import OpenPipe
from .reports import Lost
from .requests.hosts import FACTS

PAUSES = (2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds before each try to connect to a lost host; the last is repeated."""
FACTS_SECONDS = 30.0


class SpareConnections(Listener):
    """Hosts that are ready for the next attempt. A lost one does not concern the attempt that runs."""

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
