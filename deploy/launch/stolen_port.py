"""Explains a launch that failed because another program took its port before rank 0 could listen there."""

from __future__ import annotations

import dataclasses

from ..connect.channel import Channel
from ..connect.requests.hosts import PORT_THIEF
from ..console.terminal import harmless
from ..errors import MusterError
from .result import Failure, LaunchResult

# Failures that a taken port may cause: rank 0 or the launcher ends, ranks meet a stranger, or all wait.
POSSIBLE = frozenset({"rank", "launcher", "start", "stall"})
ASK_SECONDS = 5.0


def blame_thief(result: LaunchResult, head: Channel) -> LaunchResult:
    """The result with the taken port as its failure, if a process listens there after the job has ended.

    The job's own processes are gone by then, and the agent keeps the port bound. So a process that listens
    there took the port before rank 0 could.
    """
    failure = result.failure
    if failure is None or failure.kind not in POSSIBLE or result.left:
        return result
    try:
        thief = head.ask(PORT_THIEF, seconds=ASK_SECONDS)
    except MusterError:
        return result
    if thief.user is None:
        return result
    host, user = result.plan.hosts[0].host.name, harmless(thief.user)
    reason = f"a program of user {user} took port {thief.port}, where the ranks meet, before rank 0 had it"
    tail = (f"{failure.headline}\n", *failure.tail)
    return dataclasses.replace(
        result, failure=Failure("port", reason, failure.exit_status, host=host, at=failure.at, tail=tail)
    )
