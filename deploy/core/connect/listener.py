"""Receives the reports of a command's hosts, and detects the loss of a silent host.

Every loop that waits for hosts uses it, so that all judge silence in the same way (`silence`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty

from .. import interrupts
from ..wire.clock import now
from .channel import Channel
from .inbox import Inbox
from .pipe import SilentError
from .reports import Event, Lost
from .requests import TIME
from .silence import Clocks, Sign, losses, standstill

PING_SECONDS, JUDGE_SECONDS = 2.0, 0.5


def ask_for_a_sign(channel: Channel) -> None:
    """Ask a host that owes no answer for its time: then it owes one."""
    if not channel.silent_for():
        channel.post(TIME)


class Listener:
    """The channels of a command, and one queue of their hosts' reports."""

    def __init__(self, events: Inbox, channels: dict[str, Channel] | None = None) -> None:
        self.events = events
        self.channels: dict[str, Channel] = channels or {}
        """The hosts that are asked, in their order."""
        self.silent: dict[str, SilentError] = {}
        """The hosts that were given up, each with the reason."""
        self.ping: Callable[[Channel], object] = ask_for_a_sign
        self._clocks, self._judged, self._pinged = Clocks(now(), time.monotonic()), 0.0, 0.0
        self._threaded = False

    def hear(self, seconds: float) -> Event | None:
        """The next report, or the loss of a host, if one comes in this time."""
        deadline = time.monotonic() + seconds
        while True:
            interrupts.check()
            if not self._threaded:
                self._turn()
            left = min(deadline - time.monotonic(), JUDGE_SECONDS)
            try:
                return self.events.get(timeout=max(0.0, left))
            except Empty:
                if time.monotonic() >= deadline:
                    return None

    def losses(self) -> dict[str, SilentError]:
        """The hosts that are silent now, each with the reason."""
        all_hosts = [*self.channels.items()]  # threads may be connecting
        living = [(host, each) for host, each in all_hosts if not each.ended]
        return losses({host: Sign(each.silent_for(), each.greeted, each.remote) for host, each in living})

    def ping_all(self) -> None:
        """Ask every host for a sign of life now."""
        self._pinged = time.monotonic()
        for host, channel in [*self.channels.items()]:  # in two threads
            if host not in self.silent:
                self.ping(channel)

    @contextmanager
    def keeping_alive(self) -> Iterator[None]:
        """Meanwhile let a thread ping and judge, and close the connection to a host that is lost.

        For a sender of much data: a write to a frozen host blocks until its connection is closed.
        """
        self._threaded = True
        try:
            with repeated(self._cut_off_silent, min(JUDGE_SECONDS, PING_SECONDS)):
                yield
        finally:
            self._threaded = False

    def _cut_off_silent(self) -> None:
        for host in self._turn():
            self.channels[host].close()

    def _turn(self) -> list[str]:
        """Ping and judge when it is time; returns the hosts that are lost since the last turn."""
        last, self._clocks = self._clocks, Clocks(now(), time.monotonic())
        if standstill(last, self._clocks):  # this process did not run
            for channel in self.channels.values():
                channel.excuse_silence()
        awake, lost = self._clocks.awake, list[str]()
        if awake - self._judged >= min(JUDGE_SECONDS, PING_SECONDS):
            self._judged = awake
            lost = self._lose_silent()
        if awake - self._pinged >= PING_SECONDS:
            self.ping_all()
        return lost

    def _lose_silent(self) -> list[str]:
        lost = {host: error for host, error in self.losses().items() if host not in self.silent}
        for host, error in lost.items():
            self.silent[host] = error
            self.channels[host].give_up()
            self.events.put(Event(host, Lost(error)), wait=False)
        return [*lost]


@contextmanager
def repeated(act: Callable[[], object], seconds: float) -> Iterator[None]:
    """Meanwhile let a thread do this every so many seconds."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(seconds):
            act()

    threading.Thread(target=work, daemon=True).start()
    try:
        yield
    finally:
        over.set()
