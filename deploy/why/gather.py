"""Asks the hosts of a job for the evidence of their ranks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..connect.channel import Channel
from ..connect.evidence import Evidence
from ..connect.fanout import on_every
from ..connect.requests.why import WHY
from .positions import Rank
from .py_spy import own_py_spy, send_py_spy

# An agent gives each py-spy 8 s, and torch's server 4 s.
WHY_SECONDS = 15.0


def gather(job: str, channels: Mapping[str, Channel]) -> tuple[list[Rank], dict[str, str]]:
    """The ranks of a job in their order, and why a host gave no evidence. All hosts are asked at once."""
    tool = own_py_spy()
    asked = on_every(channels, lambda host: _ask(job, channels[host], tool))
    ranks = [
        Rank(int(number), host, evidence)
        for host, found in asked.results.items()
        for number, evidence in found.items()
    ]
    problems = {host: error.reason for host, error in asked.errors.items()}
    return sorted(ranks, key=lambda rank: rank.number), problems


def with_silent(ranks: Sequence[Rank], places: Mapping[int, str], silent: Collection[str]) -> list[Rank]:
    """The ranks, and those of hosts without an answer, with nothing known of them."""
    known = {rank.number for rank in ranks}
    lacking = [
        Rank(number, host, None) for number, host in places.items() if host in silent and number not in known
    ]
    return sorted([*ranks, *lacking], key=lambda rank: rank.number)


def _ask(job: str, channel: Channel, tool: bytes | None) -> Mapping[str, Evidence]:
    digest = send_py_spy(channel, tool, WHY_SECONDS)
    return channel.ask(WHY, job=job, host=channel.host, digest=digest, seconds=WHY_SECONDS).ranks
