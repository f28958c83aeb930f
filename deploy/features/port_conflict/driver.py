"""Explains a failure by another program that took the port of the rendezvous."""

from __future__ import annotations

import dataclasses

from ...core.connect.requests.hosts import PORT_THIEF
from ...core.errors import MusterError
from ...core.job.feature import Attempt, Feature
from ...core.job.result import Failure, LaunchResult
from ...core.text.terminal import harmless

# Failures that a taken port may cause: rank 0 or the launcher ends, ranks meet a stranger, or all wait.
POSSIBLE = frozenset({"rank", "launcher", "start", "stall"})
ASK_SECONDS = 5.0


class PortConflict(Feature):
    """Makes the taken port the failure, if a process listens there after the job has ended.

    The job's own processes are gone by then, and the agent keeps the port bound. So a process that listens
    there took the port before rank 0 could.
    """

    _other_ports = 2
    """How often the launch still starts again with another port. These restarts are not counted."""

    def cause(self, attempt: Attempt, result: LaunchResult) -> LaunchResult:
        """Ask the head."""
        failure = result.failure
        if failure is None or failure.kind not in POSSIBLE or result.left:
            return result
        try:
            thief = attempt.head.ask(PORT_THIEF, seconds=ASK_SECONDS)
        except MusterError:
            return result
        if thief.user is None:
            return result
        user, host = harmless(thief.user), attempt.plan.hosts[0].host.name
        reason = f"a program of user {user} took the rendezvous port {thief.port} before rank 0 bound it"
        tail = (f"{failure.headline}\n", *failure.tail)
        taken = Failure(
            *("port", reason, failure.exit_status, host, None, failure.at, tail),
            event="port.taken",
            avoided="the launch starts again with another port" if self._other_ports > 0 else "",
        )
        self._other_ports -= 1
        return dataclasses.replace(result, failure=taken)
