"""Finds the cause among several failures, and explains it.

Ranks that a launcher ends when it gives up are victims, as are ranks whose peer ended early. Agents end a job
whose driver is silent (core/agent/supervisor.py): the failures that they report then are not the cause.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..connect.pipe import GONE, SilentError, why_lost
from ..connect.silence import SHARED, Clocks, Standstill, standstill
from ..errors import HostError
from ..text.fold import fold
from ..text.text import span
from ..wire.clock import now
from ..wire.job_folders import STOPS
from .result import Failure, RankExit
from .state import EARLIER_SECONDS

SIGTERM, SIGKILL = "SIGTERM (15)", "SIGKILL (9)"
LAUNCHER_SIGNALS = frozenset({SIGTERM, SIGKILL})
"""Ends of ranks that a launcher causes when it gives up a job."""
SAME_MOMENT_SECONDS = 0.05
"""Two ends by signals that are no further apart may be noted in any order. A launcher sends SIGKILL later."""


def first_of(failures: Iterable[Failure], head: str) -> Failure | None:
    """The failure that came first; or the loss of a host or of a daemon, which explains it.

    mpirun may notice that loss before the driver does. It then ends the ranks of all hosts by a signal, and
    their hosts report that first. Of a SIGKILL and a SIGTERM at the same moment, the SIGKILL was first. A
    rank that lost its peer may notice that before the peer's own host notes the end of the peer.
    """
    ordered = _in_order(failures)
    if not ordered or not _may_be_victim(ordered[0]):
        return ordered[0] if ordered else None
    first, *rest = ordered
    causes = (
        failure
        for failure in rest
        if failure.host not in {first.host, None}
        and (failure.kind == "host" or (failure.kind == "launcher" and failure.host != head))
        and failure.at <= first.at + EARLIER_SECONDS
    )
    return next(causes, first)


def prefer_silent_host(failure: Failure | None, silent: Mapping[str, SilentError]) -> Failure | None:
    """The failure; or a host that was silent when the job was ended, if that explains the failure.

    mpirun may notice a lost host before the driver does, as in `first_of`. If all hosts are silent together,
    the cause is the network.
    """
    others = [
        name for name, error in silent.items() if failure and name != failure.host and not error.together
    ]
    if failure is None or not others or not _may_be_victim(failure):
        return failure
    tail = (f"ended with it: {failure.headline}\n",)
    return Failure("host", silent[others[0]].text, 3, host=others[0], at=failure.at, tail=tail)


def prefer_lost_network(failure: Failure | None, remote: Mapping[str, HostError | None]) -> Failure | None:
    """The failure; or the network, if the connections to all hosts broke.

    `remote`: the hosts that are reached over a network, and why each was lost, if it was.
    """
    broken = [error for error in remote.values() if error and why_lost(error) == GONE]
    if failure is None or failure.reason != GONE or len(broken) < max(2, len(remote)):
        return failure
    reason = f"the connections to all {len(broken)} hosts broke at about the same time: {SHARED}"
    return Failure("network", reason, 1, at=failure.at)


def _in_order(failures: Iterable[Failure]) -> list[Failure]:
    """The failures by time, but a cause before its consequence of the same moment."""
    ordered = sorted(failures, key=lambda failure: failure.at)
    cause = next((each for each in ordered if _explains(each, ordered[0])), None)
    return [cause, *(other for other in ordered if other is not cause)] if cause else ordered


def _explains(later: Failure, first: Failure) -> bool:
    """Whether the end of a rank, although noted later, is the cause of the failure that was noted first."""
    after = later.at - first.at
    if first.terminated or first.reason == SIGTERM:
        return later.reason == SIGKILL and not later.terminated and after <= SAME_MOMENT_SECONDS
    ended_without_words = later.kind == "rank" and later.reason.startswith(("SIG", "exit status"))
    is_victim = later.terminated or later.reason == SIGTERM or misses_a_peer(later.tail)
    lost_a_peer = first.kind == "rank" and misses_a_peer(first.tail)
    return lost_a_peer and ended_without_words and not is_victim and after <= EARLIER_SECONDS


def _may_be_victim(failure: Failure) -> bool:
    """Whether a launcher may have ended this rank."""
    return failure.kind == "rank" and (failure.terminated or failure.reason in LAUNCHER_SIGNALS)


def ended_with(failure: Failure, ends: Mapping[int, RankExit]) -> frozenset[int]:
    """The ranks that the launcher ended after this failure: their ends are no evidence of its cause."""
    return frozenset(
        rank
        for rank, end in ends.items()
        if rank != failure.rank and end.at >= failure.at and _may_be_victim(end.as_failure())
    )


# A victim may notice a moment before its peer's program is over: groups are destroyed before that. Ranks that
# a launcher ends after the failure, and that end well, come later.
LATER_SECONDS = 0.3
MOST_NAMED = 4
PAGE = "docs/how-to/when-it-fails.md#uneven-data"
# torch's messages about a lost peer match both; those of a lost database connection only the second.
_OF_RANKS = re.compile(
    r"gloo/|torch/distributed(?!/elastic)|torch\.distributed|ProcessGroup|NCCL|nccl|TCPStore|MPI_"
)
_GONE = re.compile(
    r"connection (closed|reset|refused)|broken pipe|timed? ?out|remote (process|worker|peer)|RemoteError",
    re.IGNORECASE,
)
_TRACEBACK = re.compile(r"(?<!Original )Traceback \(most recent call last\)")
_RAISED_FROM = re.compile("During handling of the above exception|The above exception was the direct cause")
# Open MPI on a rank that ended with 0 without MPI_Finalize. mpirun then ends the others by a signal.
_IMPROPER = re.compile(r"has exited due to process rank (\d+)\b")


def ended_early(
    failure: Failure | None, ends: Mapping[int, RankExit], launcher_tail: Sequence[str]
) -> tuple[RankExit, ...]:
    """The ranks that ended with status 0 before the failure, if ranks then failed because a peer was gone.

    Where data is uneven, the others fail next, and seem the cause. `launcher_tail`: mpirun may name the
    rank that ended improperly.
    """
    if failure is None:
        return ()
    before = {
        rank: end
        for rank, end in ends.items()
        if end.code == 0 and not end.terminated and end.at <= failure.at + LATER_SECONDS
    }
    improper = {int(rank) for rank in _IMPROPER.findall("\n".join(launcher_tail))} & before.keys()
    if failure.kind in {"rank", "launcher"} and improper:
        return tuple(before[rank] for rank in sorted(improper))
    if failure.waits or (failure.kind == "rank" and misses_a_peer(failure.tail)):
        return tuple(sorted(before.values(), key=lambda end: end.at))
    return ()


def misses_a_peer(tail: Sequence[str]) -> bool:
    """Whether these last lines are of a rank whose peer is gone."""
    return in_collective(tail) and bool(_GONE.search("".join(last_traceback(tail))))


def in_collective(tail: Sequence[str]) -> bool:
    """Whether the error in these last lines of a rank names torch's collectives, or a library for them."""
    return bool(_OF_RANKS.search("".join(last_traceback(tail))))


def last_traceback(tail: Sequence[str]) -> Sequence[str]:
    """The last traceback with those that it was raised from, and what follows it; without one, all lines.

    An earlier traceback is of an exception that the program has handled.
    """
    starts = [number for number, line in enumerate(tail) if _TRACEBACK.search(line)]
    while len(starts) > 1 and any(map(_RAISED_FROM.search, tail[starts[-2] : starts[-1]])):
        starts.pop()
    return tail[starts[-1] :] if starts else tail


def early_lines(early: Sequence[RankExit], began: float) -> list[str]:
    """The verdict's lines about these ranks."""
    if not early:
        return []
    by_host = fold(sorted((end.placed.rank, end.placed.host) for end in early))
    who = ", ".join(f"{span(ranks)} on {host}" for ranks, host in by_host[:MOST_NAMED])
    who += " and others" if len(by_host) > MOST_NAMED else ""
    after = f"{max(0.0, early[0].at - began):.1f} s"
    return [
        f"{who} ended with status 0 after {after}, while others still ran",
        f"does every rank run the same number of steps? uneven data: {PAGE}",
    ]


# Agents wait 12 s for the driver; up to 2 s of these may have passed before.
PATIENCE_SECONDS = 10.0
# For this long after the driver woke up, failures are consequences: it takes time to notice a silent host.
AFTERMATH_SECONDS = 15.0
SIGNALLED = 128  # agents end ranks by signals
DETACH = "; with --detach a job runs on without this machine"


class Suspension:
    """Notices that this process did not run, or lost its network, and explains the failures that follow.

    `head`: the host on which a detached driver runs.
    """

    def __init__(self, head: str, *, detached: bool = False) -> None:
        self.detached, self._head, self._clocks = detached, head, Clocks(now(), time.monotonic())
        self._long: Standstill | None = None
        """The last standstill that was longer than agents wait."""

    def look(self) -> None:
        """To be called at each turn of the loop, before its events are judged."""
        last, self._clocks = self._clocks, Clocks(now(), time.monotonic())
        gap = standstill(last, self._clocks)
        if gap and gap.seconds >= PATIENCE_SECONDS:
            self._long = gap

    def explain(self, failure: Failure | None) -> Failure | None:
        """The failure; or the standstill of this driver as the failure, if agents ended the job for that."""
        if failure is None or failure.kind in STOPS:
            return failure
        if self._long and self._follows(failure, self._long):
            return Failure("driver", self._stood_still(self._long), 1, at=failure.at)
        if failure.kind in {"network", "driver"}:
            return replace(failure, reason=self._advised(failure.reason))
        return failure

    @staticmethod
    def _follows(failure: Failure, long: Standstill) -> bool:
        if failure.kind == "rank" and failure.exit_status < SIGNALLED:
            return False  # the rank ended on its own
        return long.began + PATIENCE_SECONDS <= failure.at <= long.ended + AFTERMATH_SECONDS

    def _stood_still(self, long: Standstill) -> str:
        silent = "and hosts end a job whose driver is silent"
        if long.machine:
            return self._advised(f"this machine was suspended for {long.seconds:.0f} s, {silent}")
        why = "SIGSTOP, or its host was overloaded" if self.detached else "Ctrl-Z? an overloaded machine?"
        return self._advised(f"Muster's driver did not run for {long.seconds:.0f} s ({why}), {silent}")

    def _advised(self, reason: str) -> str:
        return f"Muster's driver on {self._head}: {reason}" if self.detached else f"{reason}{DETACH}"
