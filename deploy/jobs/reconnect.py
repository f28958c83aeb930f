"""Reads a job over a connection that may break: it is made again, and reading continues where it was."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..connect.channel import Channel
from ..connect.pipe import LostError, why_lost
from ..connect.requests.jobs import OUTPUT
from ..connect.requests.request import Answer, Request
from ..errors import MusterError
from .control import LocatedJob

TRY_SECONDS, PAUSE_SECONDS = 60.0, 2.0
FINAL = frozenset({"host.protocol-error", "python.failed", "ssh.shell-noisy", "ssh.shell-reads"})
"""Losses that another connection would not change."""


def reconnecting(located: LocatedJob, tell: Callable[[str], object] = lambda line: None) -> LocatedJob:
    """The job at a place that is connected to again; at this machine it is as it was."""
    if not isinstance(located.records, Channel):
        return located
    return located._replace(records=Reconnecting(located, located.records, tell))


class Reconnecting:
    """A host that is connected to again for a minute, when its connection is lost.

    `tell`: gets a line when the connection is lost, and when it is there again.
    """

    def __init__(self, located: LocatedJob, channel: Channel, tell: Callable[[str], object]) -> None:
        self.host = channel.host
        self._located, self._channel, self._tell = located, channel, tell
        self._at = 0
        """How much of the output was read. A new agent begins there."""

    def ask(
        self, request: Request[Answer], payload: bytes = b"", *, seconds: float = 30.0, **fields: Any
    ) -> Answer:
        """Ask, if need be over a new connection; `LostError` that says how to come back if there is none."""
        until = 0.0
        while True:
            if request is OUTPUT:
                fields["start"] = self._at
            try:
                answer = self._channel.ask(request, payload, seconds=seconds, **fields)
            except LostError as error:
                if error.kind in FINAL:
                    raise
                until = until or self._begin(error)
                self._reconnect(error, until)
            else:
                self._at = getattr(answer, "at", self._at)
                if until:
                    self._tell(f"{self.host}: connected again")
                return answer

    def _begin(self, error: LostError) -> float:
        self._tell(f"{self.host}: {why_lost(error)}; connecting again for up to {TRY_SECONDS:.0f} s")
        return time.monotonic() + TRY_SECONDS

    def _reconnect(self, error: LostError, until: float) -> None:
        why = why_lost(error)
        while time.monotonic() < until:
            time.sleep(PAUSE_SECONDS)
            try:
                self._channel = self._channel.reopen()
            except MusterError as failed:
                why = failed.reason
            else:
                return
        job = self._located.state.job
        left = "the job keeps running on its hosts; " if self._located.state.running else ""
        raise LostError(
            f"no connection for {TRY_SECONDS:.0f} s: {why}",
            f"{left}see it again with: muster {'attach' if left else 'logs'} {job}",
            host=self.host,
        )
