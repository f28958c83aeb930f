"""Connected hosts of a job that have no rank. The next attempt takes them over."""

from __future__ import annotations

from ..hosts.facts import Facts
from .channel import Channel
from .fanout import in_thread
from .inbox import Inbox
from .kept import KeptHosts
from .listener import Listener
from .reports import Lost


class Reserve(Listener):
    """Hosts that are ready for the next attempt. A lost one does not concern the attempt that runs."""

    def __init__(self) -> None:
        super().__init__(Inbox())
        self._facts: dict[str, Facts] = {}

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

    def hand_to(self, kept: KeptHosts) -> None:
        """Let the next attempt take these hosts over."""
        for host, channel in self.channels.items():
            kept.add(channel, self._facts[host])
        self.channels.clear()

    def close(self) -> None:
        """Cut the lifelines of the hosts that no attempt has taken over."""
        kept = KeptHosts(self.events)
        self.hand_to(kept)
        kept.close()
