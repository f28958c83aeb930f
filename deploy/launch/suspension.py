"""Detects a driver that did not run for a while: a closed lid, Ctrl-Z, output that nobody reads.

Agents end a job whose driver is silent (deploy/agent/job/supervisor.py). The failures that they report then
are not the cause. And a host does not count as silent for the time in which this driver did not listen.
"""

from __future__ import annotations

import time

from ..common.clock import now
from ..connect.cluster import Cluster
from .result import Failure

# The loop of a launch turns at least every 2 s. Agents wait 12 s; up to 2 s of these may have passed before.
NOTICED_SECONDS, PATIENCE_SECONDS = 4.0, 10.0
# For this long after the driver woke up, failures are consequences: it takes time to notice a silent host.
AFTERMATH_SECONDS = 15.0
SIGNALLED = 128  # agents end ranks by signals
OWN = frozenset({"interrupted", "stopped", "driver"})


class Suspension:
    """Notices that this process did not run, and explains the failures that follow."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen, self._awake = now(), time.monotonic()
        self._long: tuple[float, float] | None = None
        """The begin and end of the last standstill that was longer than agents wait."""
        self._whole_machine = False

    def look(self) -> None:
        """To be called at each turn of the loop, before its events are judged."""
        last, self._seen = self._seen, now()
        last_awake, self._awake = self._awake, time.monotonic()  # without the time that the machine slept
        gap = self._seen - last
        if gap < NOTICED_SECONDS:
            return
        for channel in self._cluster.channels.values():
            channel.excuse_silence()
        if gap >= PATIENCE_SECONDS:
            self._long = (last, self._seen)
            self._whole_machine = gap - (self._awake - last_awake) > gap / 2

    def explain(self, failure: Failure | None) -> Failure | None:
        """The failure; or the standstill of this driver as the failure, if agents ended the job for that."""
        if failure is None or self._long is None or failure.kind in OWN:
            return failure
        if failure.kind == "rank" and failure.exit_status < SIGNALLED:
            return failure  # the rank ended by itself
        began, ended = self._long
        if not began + PATIENCE_SECONDS <= failure.at <= ended + AFTERMATH_SECONDS:
            return failure
        who = "this machine was suspended" if self._whole_machine else "this driver stood still"
        why = "" if self._whole_machine else " (Ctrl-Z? output that nobody read?)"
        reason = (
            f"{who} for {ended - began:.0f} s{why}, and hosts end a job whose driver says nothing; "
            "with --detach it goes on without this machine"
        )
        return Failure("driver", reason, 1, at=failure.at)
