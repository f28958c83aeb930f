"""Reads a job over a connection that may break: it reconnects, and continues reading at the same position."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..connect.channel import Channel
from ..connect.pipe import LostError, why_lost
from ..connect.requests import OUTPUT, Answer, Request
from ..errors import MusterError
from .find import LocatedJob

TRY_SECONDS, PAUSE_SECONDS = 60.0, 2.0
FINAL = frozenset({"host.protocol-error", "python.failed", "ssh.shell-noisy", "ssh.shell-reads"})
"""Errors that another connection would not change."""


def reconnecting(located: LocatedJob, report: Callable[[str], object] = lambda line: None) -> LocatedJob:
    """The job with a channel that reconnects; a job of this machine stays as it is."""
    if not isinstance(located.records, Channel):
        return located
    return located._replace(records=Reconnecting(located, located.records, report))


class Reconnecting:
    """A channel that reconnects for up to a minute when its connection is lost.

    `report`: gets a line when the connection is lost, and when it is restored.
    """

    def __init__(self, located: LocatedJob, channel: Channel, report: Callable[[str], object]) -> None:
        self.host = channel.host
        self._located, self._channel, self._report = located, channel, report
        self._position = 0
        """The position in the output, where a new agent continues."""

    def ask(
        self, request: Request[Answer], payload: bytes = b"", *, seconds: float = 30.0, **fields: Any
    ) -> Answer:
        """Ask, if necessary over a new connection; without one, `LostError` with the command to return."""
        until = 0.0
        while True:
            if request is OUTPUT:
                fields["start"] = self._position
            try:
                answer = self._channel.ask(request, payload, seconds=seconds, **fields)
            except LostError as error:
                if error.kind in FINAL:
                    raise
                until = until or self._begin(error)
                self._reconnect(error, until)
            else:
                self._position = getattr(answer, "at", self._position)
                if until:
                    self._report(f"{self.host}: connected again")
                return answer

    def _begin(self, error: LostError) -> float:
        self._report(f"{self.host}: {why_lost(error)}; connecting again for up to {TRY_SECONDS:.0f} s")
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
