"""Which of several failures was the cause. Ranks that a launcher ends when it gives up are victims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..connect.pipe import GONE, SilentError, why_lost
from ..connect.silence import SHARED
from ..errors import HostError
from .result import Failure
from .state import SETTLE_SECONDS

LAUNCHER_SIGNALS = frozenset({"SIGTERM (15)", "SIGKILL (9)"})
"""Ends of ranks that a launcher causes when it gives up a job."""


def first_of(failures: Iterable[Failure], head: str) -> Failure | None:
    """The failure that came first; or the loss of a host or of a daemon, which explains it.

    mpirun may notice that loss before the driver does. It then ends the ranks of all hosts by a signal, whose
    time their hosts tell to the millisecond.
    """
    ordered = sorted(failures, key=lambda failure: failure.at)
    if not ordered or not _may_be_victim(ordered[0]):
        return ordered[0] if ordered else None
    first, *later = ordered
    causes = (
        failure
        for failure in later
        if failure.host not in {first.host, None}
        and (failure.kind == "host" or (failure.kind == "launcher" and failure.host != head))
        and failure.at <= first.at + SETTLE_SECONDS
    )
    return next(causes, first)


def prefer_silent_host(failure: Failure | None, silent: Mapping[str, SilentError]) -> Failure | None:
    """The failure; or a host that was silent when the job was ended, if that explains the failure.

    mpirun may notice a lost host before the driver does, as in `first_of`. All hosts together lost none.
    """
    others = [
        name for name, error in silent.items() if failure and name != failure.host and not error.together
    ]
    if failure is None or not others or not _may_be_victim(failure):
        return failure
    tail = (f"ended with it: {failure.headline}\n",)
    return Failure("host", silent[others[0]].text, 3, host=others[0], at=failure.at, tail=tail)


def blame_network(failure: Failure | None, remote: Mapping[str, HostError | None]) -> Failure | None:
    """The failure; or what all hosts share, if the connections to all of them broke.

    `remote`: the hosts that are reached over a network, and why each was lost, if it was.
    """
    broken = [error for error in remote.values() if error and why_lost(error) == GONE]
    if failure is None or failure.reason != GONE or len(broken) < max(2, len(remote)):
        return failure
    reason = f"the connections to all {len(broken)} hosts broke at about the same time: {SHARED}"
    return Failure("network", reason, 1, at=failure.at)


def _may_be_victim(failure: Failure) -> bool:
    """Whether a launcher may have ended this rank."""
    return failure.kind == "rank" and failure.reason in LAUNCHER_SIGNALS
