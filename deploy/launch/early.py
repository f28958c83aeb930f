"""Ranks that ended well before others had: where data is uneven, the others fail next, and seem the cause."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..console.fold import fold
from ..console.text import span
from .result import Failure, RankEnd

# A victim may notice a moment before its peer's program is over: groups are destroyed before that. Ranks that
# a launcher ends after the failure, and that end well, come later.
LATER_SECONDS = 0.3
MOST_NAMED = 4
PAGE = "docs/how-to/when-it-fails.md#uneven-data"
# What torch says of a peer that is gone. A rank that lost its own connection to a database says only that.
_OF_RANKS = re.compile(r"gloo/|torch/distributed|torch\.distributed|ProcessGroup|NCCL|nccl|TCPStore|MPI_")
_GONE = re.compile(
    r"connection (closed|reset|refused)|broken pipe|timed? ?out|remote (process|worker|peer)|RemoteError",
    re.IGNORECASE,
)
# Open MPI on a rank that ended with 0 without MPI_Finalize. mpirun then ends the others by a signal.
_IMPROPER = re.compile(r"has exited due to process rank (\d+)\b")


def ended_early(
    failure: Failure | None, ends: Mapping[int, RankEnd], launcher_tail: Sequence[str]
) -> tuple[RankEnd, ...]:
    """The ranks that ended with status 0 before the failure, if the failure is one of ranks that miss a peer.

    The tail of the launcher's log: mpirun says which rank ended improperly.
    """
    if failure is None:
        return ()
    before = {
        rank: end for rank, end in ends.items() if end.code == 0 and end.at <= failure.at + LATER_SECONDS
    }
    blamed = {int(rank) for rank in _IMPROPER.findall("\n".join(launcher_tail))}
    if failure.kind in {"rank", "launcher"} and (named := sorted(blamed & before.keys())):
        return tuple(before[rank] for rank in named)
    if failure.kind == "stall" or (failure.kind == "rank" and _misses_a_peer(failure.tail)):
        return tuple(sorted(before.values(), key=lambda end: end.at))
    return ()


def _misses_a_peer(tail: Sequence[str]) -> bool:
    """Whether these last lines are of a rank whose peer is gone."""
    text = "".join(tail)
    return bool(_OF_RANKS.search(text) and _GONE.search(text))


def lines(early: Sequence[RankEnd], began: float) -> list[str]:
    """What the verdict says about them; nothing if there are none."""
    if not early:
        return []
    by_host = fold(sorted((end.place.rank, end.place.host) for end in early))
    who = ", ".join(f"{span(ranks)} on {host}" for ranks, host in by_host[:MOST_NAMED])
    who += " and others" if len(by_host) > MOST_NAMED else ""
    after = f"{max(0.0, early[0].at - began):.1f} s"
    return [
        f"{who} ended with status 0 after {after}, while others still ran",
        f"does every rank run the same number of steps? uneven data: {PAGE}",
    ]
