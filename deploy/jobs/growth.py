"""Lets the ranks of a job save and end, so that it goes on with more ranks (`--grow`).

Only a program that handles SIGUSR1 can do so: the signal ends any other one. Each host reads from the kernel
whether the programs of its ranks have a handler.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future

from ..connect.channel import Channel
from ..connect.requests.launch import HANDLED, SIGNAL, Handled
from ..errors import MusterError

NAME = "SIGUSR1"
ASK_SECONDS = 5.0
"""Between two questions whether the programs handle the signal: they may not have begun yet."""


class Growth:
    """Sends SIGUSR1 to the ranks of an attempt, once, when all of their programs handle it."""

    def __init__(self, channels: Mapping[str, Channel]) -> None:
        self._channels = channels
        self._answers: dict[str, Future[Handled]] = {}
        self._asked = 0.0
        self.sent = False

    def look(self) -> bool:
        """Ask the hosts, or read their answers; returns whether the signal was sent now."""
        if self.sent:
            return False
        if not self._answers:
            if time.monotonic() >= self._asked + ASK_SECONDS:
                self._asked = time.monotonic()
                self._answers = {
                    host: channel.post(HANDLED, name=NAME) for host, channel in self._channels.items()
                }
            return False
        if not all(answer.done() for answer in self._answers.values()):
            return False
        self.sent = all(map(_is_handled, self._answers.values()))
        self._answers = {}
        if self.sent:
            for channel in self._channels.values():
                channel.post(SIGNAL, name=NAME)
        return self.sent


def _is_handled(answer: Future[Handled]) -> bool:
    try:
        return answer.result(0.0).handled
    except MusterError:
        return False
