"""Explains the end of a job whose driver did not run for a while, or lost its network.

Agents end a job whose driver is silent (deploy/agent/job/supervisor.py). The failures that they report then
are not the cause.
"""

from __future__ import annotations

import time
from dataclasses import replace

from ..common.clock import now
from ..connect.silence import Clocks, Standstill, standstill
from .result import Failure

# Agents wait 12 s for the driver; up to 2 s of these may have passed before.
PATIENCE_SECONDS = 10.0
# For this long after the driver woke up, failures are consequences: it takes time to notice a silent host.
AFTERMATH_SECONDS = 15.0
SIGNALLED = 128  # agents end ranks by signals
OWN = frozenset({"interrupted", "stopped"})
DETACH = "; with --detach a job runs on without this machine"


class Suspension:
    """Notices that this process did not run, and explains the failures that follow.

    `head`: the host on which a detached driver runs.
    """

    def __init__(self, head: str) -> None:
        self.detached = False
        self._head, self._clocks = head, Clocks(now(), time.monotonic())
        self._long: Standstill | None = None
        """The last standstill that was longer than agents wait."""

    def look(self) -> None:
        """To be called at each turn of the loop, before its events are judged."""
        last, self._clocks = self._clocks, Clocks(now(), time.monotonic())
        found = standstill(last, self._clocks)
        if found and found.seconds >= PATIENCE_SECONDS:
            self._long = found

    def explain(self, failure: Failure | None) -> Failure | None:
        """The failure; or the standstill of this driver as the failure, if agents ended the job for that."""
        if failure is None or failure.kind in OWN:
            return failure
        if self._long and self._follows(failure, self._long):
            return Failure("driver", self._stood_still(self._long), 1, at=failure.at)
        if failure.kind in {"network", "driver"}:
            return replace(failure, reason=self._advised(failure.reason))
        return failure

    @staticmethod
    def _follows(failure: Failure, long: Standstill) -> bool:
        if failure.kind == "rank" and failure.exit_status < SIGNALLED:
            return False  # the rank ended by itself
        return long.began + PATIENCE_SECONDS <= failure.at <= long.ended + AFTERMATH_SECONDS

    def _stood_still(self, long: Standstill) -> str:
        silent = "and hosts end a job whose driver is silent"
        if long.machine:
            return self._advised(f"this machine was suspended for {long.seconds:.0f} s, {silent}")
        why = "SIGSTOP, or its host was overloaded" if self.detached else "Ctrl-Z? output that is not read?"
        return self._advised(f"the driver stood still for {long.seconds:.0f} s ({why}), {silent}")

    def _advised(self, reason: str) -> str:
        return f"the driver on {self._head}: {reason}" if self.detached else f"{reason}{DETACH}"
