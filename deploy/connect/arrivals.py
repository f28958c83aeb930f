"""When the ranks of a host came to their last collectives (deploy/agent/job/arrivals.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal, NamedTuple

from ..decode import AtMost, Between, Like, message
from ..hosts.bounds import Bytes, Count, Name, Seconds

MOST_ARRIVALS = 256  # of a rank in a group: what its ring holds
_Share = Annotated[float, Between(0, 1)]


class Site(NamedTuple):
    """A collective of the program: its operation, line and size; `waits`: it ends when all have come."""

    op: Name
    where: Annotated[str, AtMost(256)]
    bytes: Bytes
    waits: bool


@message(frozen=True)
class Track:
    """The last collectives of a group that a rank has begun: three lists of the same length, in order.

    `kind`: who counted, as of an `Entry` (evidence.py). `at`: by the host's time of day. `sites`: places in
    the list of sites of the rank.
    """

    group: Name
    kind: Literal["call", "work", "torch"]
    count: Count
    """How many there were in all."""
    seqs: Annotated[tuple[Count, ...], AtMost(MOST_ARRIVALS)]
    at: Annotated[tuple[Seconds, ...], AtMost(MOST_ARRIVALS)]
    sites: Annotated[tuple[Count, ...], AtMost(MOST_ARRIVALS)]
    ranks: Name = ""
    """Its members, as of a `GroupCount`."""


@message(frozen=True)
class Pressure:
    """What kept the main thread of a rank from a processor since it was last asked for: shares of the time.

    `busy` ran; `queued` was ready to run, and other threads had the processors; `throttled` is of the periods
    of its cgroup's quota in which the quota was used up. None where the host does not count it.
    """

    busy: _Share | None = None
    queued: _Share | None = None
    throttled: _Share | None = None


@message(frozen=True)
class Arrivals:
    """The collectives of a rank."""

    sites: Annotated[tuple[Site, ...], AtMost(4 * MOST_ARRIVALS)] = ()
    tracks: Annotated[tuple[Track, ...], AtMost(16)] = ()
    pressure: Pressure | None = None


@message(frozen=True)
class ArrivalsHere:
    """The collectives of each rank of a host.

    `unsent`: in which share of some readings data waited there to be sent to another host. `cost`: seconds of
    processor time that all this took.
    """

    ranks: Annotated[Mapping[Annotated[str, Like(r"\d{1,7}")], Arrivals], AtMost(1 << 12)] = field(
        default_factory=dict
    )
    unsent: _Share = 0.0
    cost: Annotated[float, Between(0, 1e6)] = 0.0
