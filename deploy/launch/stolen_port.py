"""A launch whose port another program took before rank 0 could listen there."""

from __future__ import annotations

import dataclasses

from ..connect.answers import PORT_THIEF
from ..connect.channel import Channel
from ..console.terminal import harmless
from ..errors import MusterError
from .result import Failure, LaunchResult

# Ends that a taken port may have: of rank 0, of ranks that met a stranger there, of the launcher, or of none.
POSSIBLE = frozenset({"rank", "launcher", "start", "stall"})
ASK_SECONDS = 5.0


def blame_thief(result: LaunchResult, head: Channel) -> LaunchResult:
    """The result with the theft as its failure, if somebody listens at the port now that the job has ended.

    Its own processes are gone by then, and the agent keeps the port bound: who listens there came between.
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
