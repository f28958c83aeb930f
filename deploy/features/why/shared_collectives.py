"""The collectives that every rank of a group has begun: their times by the driver's clock, and their order.

Ranks that do not call the same collectives in the same order hang, or under MPI go on with
wrong data. The line of a call proves nothing: ranks may call the same collective from different lines. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from ...core.text.fold import fold
from ...core.text.terminal import harmless
from ...core.text.text import size, span
from .messages import SETUP, Arrivals, CallSite, GroupArrivals
from .positions import UNEVEN, compared_kind, distinct_names, renamed

UNCERTAINTIES = 3.0
"""Lateness below this multiple of the clock uncertainty is ignored."""
LEAST_SECONDS = 0.0005
"""Lateness below 0.5 ms is scheduling jitter and is ignored."""


@dataclass(frozen=True)
class HostClock:
    """By how much a host's time of day is ahead of the driver's, and the uncertainty of that. Seconds."""

    ahead: float = 0.0
    uncertainty: float = 0.0


@dataclass(frozen=True)
class Arriving:
    """A rank with its host, the clock of that, and its arrivals."""

    number: int
    host: str
    arrivals: Arrivals
    clock: HostClock = HostClock()


@dataclass(frozen=True)
class SharedCollectives:
    """The collectives of a group that every rank has: `at[rank][index]` by the driver's clock."""

    group: str
    ranks: tuple[Arriving, ...]
    seqs: tuple[int, ...]
    sites: tuple[CallSite, ...]
    at: tuple[tuple[float, ...], ...]
    guard: tuple[float, ...]
    """For each rank, the lateness that is ignored: the uncertainty of clocks, and jitter."""


@dataclass(frozen=True)
class Departure:
    """The first collective of a group that some ranks called otherwise than most, or than the first rank."""

    group: str
    seq: int
    ranks: tuple[int, ...]
    mine: CallSite
    others: CallSite

    def __str__(self) -> str:
        """`rank 1 left the order of the others at #6 of group 0 (train.py:14): it called ...`."""
        at = f"#{self.seq} of group {harmless(self.group)}"
        where = f" ({harmless(self.mine.where)})" if self.mine.where else ""
        it = "it" if len(self.ranks) == 1 else "each"
        return (
            f"{span(self.ranks)} left the order of the others at {at}{where}: "
            f"{it} called {_called(self.mine)}, the others {_called(self.others, at_line=True)}"
        )


def _called(site: CallSite, *, at_line: bool = False) -> str:
    where = f" ({harmless(site.where)})" if at_line and site.where else ""
    return f"{harmless(site.op)}{f' of {size(site.bytes)}' if site.bytes else ''}{where}"


def departures(ranks: Sequence[Arriving]) -> list[Departure]:
    """For each group the first number at which the ranks differ in operation or size."""
    ranks = with_distinct_groups(ranks)
    found = []
    for group in groups(ranks):
        rows = {
            rank.number: {
                seq: _site(rank, index) for seq, index in zip(track.seqs, track.sites, strict=False)
            }
            for rank, track in _tracks(group, ranks)
        }
        common = set.intersection(*(set(row) for row in rows.values())) if len(rows) > 1 else set()
        last = min((max(row, default=0) for row in rows.values()), default=0)  # it may be half written
        for seq in sorted(seq for seq in common if seq < last):
            sides = fold((rank, _meaning(row[seq])) for rank, row in rows.items())
            if len(sides) > 1:
                odd = tuple(sorted(rank for numbers, _ in sides[1:] for rank in numbers))
                mine, others = rows[odd[0]][seq], rows[sides[0][0][0]][seq]
                found.append(Departure(group, seq, odd, mine, others))
                break
    return found


def _meaning(site: CallSite) -> tuple[str, int]:
    return site.op, 0 if site.op in UNEVEN else site.bytes


def with_distinct_groups(ranks: Sequence[Arriving]) -> list[Arriving]:
    """The ranks, with distinct names for groups of different members."""
    names = distinct_names(rank.arrivals.tracks for rank in ranks)
    return [
        replace(rank, arrivals=replace(rank.arrivals, tracks=renamed(rank.arrivals.tracks, own)))
        if own
        else rank
        for rank, own in zip(ranks, names, strict=True)
    ]


def groups(ranks: Sequence[Arriving]) -> list[str]:
    """The names of all groups except SETUP."""
    return list(
        dict.fromkeys(track.group for rank in ranks for track in rank.arrivals.tracks if track.group != SETUP)
    )


def join(group: str, ranks: Sequence[Arriving]) -> SharedCollectives | None:
    """The collectives that all ranks of a group have in common; None for fewer than two ranks."""
    tracks = _tracks(group, ranks)
    if len(tracks) < 2:
        return None
    rows = [dict(zip(track.seqs, track.at, strict=False)) for _, track in tracks]
    seqs = sorted(set(rows[0]).intersection(*rows[1:]))
    first, of_first = tracks[0]
    site_of = dict(zip(of_first.seqs, of_first.sites, strict=False))
    sites = tuple(_site(first, site_of.get(seq, -1)) for seq in seqs)
    members = tuple(rank for rank, _ in tracks)
    at = tuple(
        tuple(row[seq] - rank.clock.ahead for seq in seqs) for rank, row in zip(members, rows, strict=True)
    )
    return SharedCollectives(group, members, tuple(seqs), sites, at, _guards(members))


def _tracks(group: str, ranks: Sequence[Arriving]) -> list[tuple[Arriving, GroupArrivals]]:
    """The ranks of a group, each with what the counter that is compared has counted."""
    kind = compared_kind(
        {track.kind: track.count for track in rank.arrivals.tracks if track.group == group} for rank in ranks
    )
    return [(rank, track) for rank in ranks if (track := _track(rank, group, kind))]


def _track(rank: Arriving, group: str, kind: str) -> GroupArrivals | None:
    return next((track for track in rank.arrivals.tracks if (track.group, track.kind) == (group, kind)), None)


def _site(rank: Arriving, index: int) -> CallSite:
    sites = rank.arrivals.sites
    return sites[index] if 0 <= index < len(sites) else CallSite("", "", 0, True)


def _guards(ranks: Sequence[Arriving]) -> tuple[float, ...]:
    """Ranks of one host have the same clock; between hosts, both clocks may be wrong."""
    wrong = {rank.host: rank.clock.uncertainty for rank in ranks}
    if len(wrong) == 1:
        return tuple(LEAST_SECONDS for _ in ranks)
    usual = {host: median(wrong[other] for other in wrong.keys() - {host}) for host in wrong}
    return tuple(max(LEAST_SECONDS, UNCERTAINTIES * (wrong[rank.host] + usual[rank.host])) for rank in ranks)
