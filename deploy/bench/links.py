"""The links between hosts as values: what was measured, and where it comes from. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from ..decode import AtMost, from_json
from ..errors import MusterError
from .lines import About, LinkLine, Rate, Seconds, Word, values

Quantity = Literal["bandwidth", "latency"]
Pair = tuple[str, str]
"""The host where a link begins, and the host where it ends."""
MOST_HOSTS = 4096
Name = Annotated[str, AtMost(255)]


@dataclass(frozen=True)
class Link:
    """A link in one direction. `latency_s`: half of a round trip that began at `source`."""

    source: Name
    target: Name
    latency_s: Seconds
    bytes_per_s: Rate


@dataclass(frozen=True)
class Links:
    """Every link that was measured in one run. `made`: when, in UTC."""

    job: Name
    made: Annotated[str, AtMost(40)]
    backend: Word
    device: Word
    hosts: Annotated[tuple[Name, ...], AtMost(MOST_HOSTS)]
    links: Annotated[tuple[Link, ...], AtMost(MOST_HOSTS * MOST_HOSTS)]

    def of(self, quantity: Quantity) -> dict[Pair, float]:
        """Bandwidth in bytes per second, or latency in seconds, by pair."""
        return {
            (link.source, link.target): link.bytes_per_s if quantity == "bandwidth" else link.latency_s
            for link in self.links
        }

    def among(self, hosts: Sequence[str]) -> Links:
        """The same without other hosts."""
        kept = tuple(name for name in self.hosts if name in {*hosts})
        links = tuple(link for link in self.links if link.source in kept and link.target in kept)
        return Links(self.job, self.made, self.backend, self.device, kept, links)

    def as_json(self) -> dict[str, Any]:
        """Plain values, which `of_json` reads."""
        return asdict(self)

    @staticmethod
    def of_json(value: Any) -> Links:
        """What `as_json` made this of. Raises one of MALFORMED for anything else."""
        links: Links = from_json(Links, value)
        return links


def read(
    job: str, made: str, hosts: Sequence[str], printed: Mapping[int, str]
) -> tuple[Links, dict[str, str]]:
    """The links of a job, and the hosts whose lines are missing or untrue, with the reason.

    hosts: the host of each rank. printed: the output of each rank. A rank speaks about the links that begin
    at it, so a host that lies spoils its own row alone. MusterError if rank 0 does not say what was measured.
    """
    about, problem = values(printed.get(0, ""), "links", About, 1)
    if not about:
        raise MusterError(problem or "rank 0 did not say what was measured", host=hosts[0])
    links: list[Link] = []
    problems: dict[str, str] = {}
    for rank, host in enumerate(hosts):
        lines, problem = values(printed.get(rank, ""), "link", LinkLine, len(hosts) - 1)
        others = {*range(len(hosts))} - {rank}
        if not problem and {line.to for line in lines} != others:
            problem = f"it measured {len(lines)} of its {len(others)} links"
        if problem:
            problems[host] = problem
        links += [
            Link(host, hosts[line.to], line.latency_s, line.bytes_per_s)
            for line in lines
            if line.to in others
        ]
    return Links(job, made, about[0].backend, about[0].device, tuple(hosts), tuple(links)), problems
