"""Hosts that stay connected from one attempt of a job to the next."""

from __future__ import annotations

from collections.abc import Iterable

from ..hosts.host_facts import Facts
from .channel import Channel
from .fanout import on_every
from .inbox import Inbox
from .reports import Event, StopAsked


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
