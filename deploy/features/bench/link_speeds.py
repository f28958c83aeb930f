"""The links between hosts as values, and which of them are slow. Pure."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ...core.errors import MusterError
from .printed_values import About, LinkLine, values

Quantity = Literal["bandwidth", "latency"]
QUANTITIES: tuple[Quantity, ...] = ("bandwidth", "latency")
Pair = tuple[str, str]
"""The host where a link begins, and the host where it ends."""


@dataclass(frozen=True)
class HostLink:
    """A link in one direction. `latency_s`: half of a round trip that began at `source`."""

    source: str
    target: str
    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Links:
    """Every link that was measured in one run. `made`: when, in UTC."""

    job: str
    made: str
    backend: str
    device: str
    hosts: tuple[str, ...]
    links: tuple[HostLink, ...]

    def of(self, quantity: Quantity) -> dict[Pair, float]:
        """Bandwidth in bytes per second, or latency in seconds, by pair."""
        return {
            (link.source, link.target): link.bytes_per_s if quantity == "bandwidth" else link.latency_s
            for link in self.links
        }


def read(
    job: str, made: str, hosts: Sequence[str], printed: Mapping[int, str]
) -> tuple[Links, dict[str, str]]:
    """The links of a job, and the hosts whose lines are missing or untrue, with the reason.

    `hosts`: the host of each rank. `printed`: the output of each rank. A rank reports the links that begin at
    it, so false figures of a host affect only its own row. MusterError without the line of rank 0.
    """
    about, problem = values(printed.get(0, ""), "links", About, 1)
    if not about:
        raise MusterError(problem or "rank 0 printed no figures", host=hosts[0])
    links: list[HostLink] = []
    problems: dict[str, str] = {}
    for rank, host in enumerate(hosts):
        lines, problem = values(printed.get(rank, ""), "link", LinkLine, len(hosts) - 1)
        others = {*range(len(hosts))} - {rank}
        if not problem and {line.to for line in lines} != others:
            problem = f"it measured {len(lines)} of its {len(others)} links"
        if problem:
            problems[host] = problem
        links += [
            HostLink(host, hosts[line.to], line.latency_s, line.bytes_per_s)
            for line in lines
            if line.to in others
        ]
    return Links(job, made, about[0].backend, about[0].device, tuple(hosts), tuple(links)), problems


SLOW: Mapping[Quantity, float] = {"bandwidth": 0.7, "latency": 0.5}
"""A link is slow below this part of the speed of others: 0.5 is twice their latency."""
MOST_OF = 0.75
"""A host is slow itself if this part of its links is."""

Where = Literal["link", "from", "to", "host"]


@dataclass(frozen=True)
class Slow:
    """A link, or all links from a host, to it, or both.

    `value` and `usual` are in bytes per second or seconds; of several links they are medians. `usual` is the
    median of the other links of the row and of the column, whichever is nearer.
    """

    quantity: Quantity
    where: Where
    source: str
    target: str
    value: float
    usual: float

    @property
    def share(self) -> float:
        """Its part of the usual speed: the lower, the worse."""
        usual = _speed(self.usual, self.quantity)
        return _speed(self.value, self.quantity) / usual if usual else 1.0


def outliers(links: Links, quantity: Quantity) -> tuple[Slow, ...]:
    """The links and hosts that are slow compared with the others of the run; none of two hosts."""
    run = _LinkSpeeds(links, quantity)
    hosts = [slow for name in links.hosts if (slow := run.slow_host(name))]
    return (*hosts, *run.slow_links())


def worst_first(links: Links) -> list[Slow]:
    """The slow links and hosts of both quantities."""
    return sorted(
        (slow for quantity in QUANTITIES for slow in outliers(links, quantity)), key=lambda slow: slow.share
    )


def _speed(value: float, quantity: Quantity) -> float:
    """Bandwidth, or the inverse of latency: the greater, the faster. Also the inverse function."""
    return value if quantity == "bandwidth" or not value else 1 / value


class _LinkSpeeds:
    """The figures of a run, in rows and columns."""

    def __init__(self, links: Links, quantity: Quantity) -> None:
        self._quantity, self._limit = quantity, SLOW[quantity]
        self._measured = links.of(quantity)
        self._speeds = {pair: _speed(value, quantity) for pair, value in self._measured.items()}
        self._rows: dict[str, list[Pair]] = {}
        self._columns: dict[str, list[Pair]] = {}
        for pair in self._speeds:
            self._rows.setdefault(pair[0], []).append(pair)
            self._columns.setdefault(pair[1], []).append(pair)
        self._all = sorted(self._speeds.values())

    def slow_links(self) -> Iterator[Slow]:
        """The links that are slow compared with the others of their row, and with those of their column."""
        rows, columns = (
            {name: self._ordered(pairs) for name, pairs in lines.items()}
            for lines in (self._rows, self._columns)
        )
        for pair, speed in self._speeds.items():
            if speed >= self._limit * min(rows[pair[0]][-1], columns[pair[1]][-1]):
                continue  # no median is above the fastest: this spares most links of a healthy cluster
            others = (median_of_rest(line, [speed]) for line in (rows[pair[0]], columns[pair[1]]))
            usual = min(others)
            if speed < self._limit * usual:
                value = self._measured[pair]
                yield Slow(self._quantity, "link", *pair, value, _speed(usual, self._quantity))

    def slow_host(self, name: str) -> Slow | None:
        """The host, if most links from it or to it are slow compared with those between all other hosts."""
        directions: dict[Where, list[Pair]] = {
            "from": self._rows.get(name, []),
            "to": self._columns.get(name, []),
        }
        usual = median_of_rest(self._all, self._ordered([*directions["from"], *directions["to"]]))
        slow: list[Where] = [
            where
            for where, pairs in directions.items()
            if pairs
            and sum(self._speeds[pair] < self._limit * usual for pair in pairs) >= MOST_OF * len(pairs)
        ]
        if not slow:
            return None
        where: Where = "host" if len(slow) == 2 else slow[0]
        value = statistics.median(
            self._measured[pair] for direction in slow for pair in directions[direction]
        )
        source, target = ("" if where == "to" else name), ("" if where == "from" else name)
        return Slow(self._quantity, where, source, target, value, _speed(usual, self._quantity))

    def _ordered(self, pairs: Sequence[Pair]) -> list[float]:
        return sorted(self._speeds[pair] for pair in pairs)


def median_of_rest(ordered: Sequence[float], removed: Sequence[float]) -> float:
    """The median of ordered numbers without some of them, which are ordered too; 0 if none are left."""
    left = len(ordered) - len(removed)
    if left < 1:
        return 0.0
    lower, upper = (left - 1) // 2, left // 2
    index = -1
    for value in removed:
        index = max(index + 1, bisect_left(ordered, value))
        lower, upper = lower + (index <= lower), upper + (index <= upper)
    return (ordered[lower] + ordered[upper]) / 2
