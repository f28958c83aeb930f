"""Asks the hosts of a job for the evidence of their ranks, and for the times of their collectives."""

from __future__ import annotations

import hashlib
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...core.connect.channel import Channel
from ...core.connect.fanout import ask_every, on_every
from ...core.connect.requests import MISSING, STORE
from .lateness import Arriving, Departure, HostClock, Pace, departures, paces
from .messages import ARRIVALS, SETUP, WHY, Arrivals, Evidence, HostArrivals, Pressure
from .positions import Rank


def own_py_spy() -> bytes | None:
    """The py-spy of this environment, if this machine runs Linux as the hosts do."""
    path = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")
    return Path(path).read_bytes() if path and sys.platform == "linux" else None


def send_py_spy(channel: Channel, tool: bytes | None, seconds: float) -> str | None:
    """Send py-spy to a host that lacks it; returns its digest. A host with py-spy uses its own."""
    digest = hashlib.sha256(tool).hexdigest() if tool else None
    if digest and tool and channel.ask(MISSING, digests=[digest], verify=True, seconds=seconds).missing:
        from ...core.plan.source_tree import archive_of  # once for a host: `why` needs it for nothing else

        channel.ask(STORE, archive_of({digest: tool}), seconds=seconds)
    return digest


# An agent gives each py-spy 8 s, and torch's server 4 s.
WHY_SECONDS = 15.0


def gather(job: str, channels: Mapping[str, Channel]) -> tuple[list[Rank], dict[str, str]]:
    """The ranks of a job in their order, and the error of each host without evidence."""
    tool = own_py_spy()
    outcomes = on_every(channels, lambda host: _ask_evidence(job, channels[host], tool))
    ranks = [
        Rank(int(number), host, evidence)
        for host, of_host in outcomes.results.items()
        for number, evidence in of_host.items()
    ]
    problems = {host: error.reason for host, error in outcomes.errors.items()}
    return sorted(ranks, key=lambda rank: rank.number), problems


def with_missing(ranks: Sequence[Rank], placement: Mapping[int, str], silent: Collection[str]) -> list[Rank]:
    """The ranks, and the others of the job without evidence. `silent`: the hosts that do not answer."""
    known = {rank.number for rank in ranks}
    unknown = [
        Rank(number, host, None, answered=host not in silent)
        for number, host in placement.items()
        if number not in known
    ]
    return sorted([*ranks, *unknown], key=lambda rank: rank.number)


def _ask_evidence(job: str, channel: Channel, tool: bytes | None) -> Mapping[str, Evidence]:
    digest = send_py_spy(channel, tool, WHY_SECONDS)
    return channel.ask(WHY, job=job, host=channel.host, digest=digest, seconds=WHY_SECONDS).ranks


ARRIVALS_SECONDS, BEGUN_SECONDS = 10.0, 2.0


@dataclass(frozen=True)
class GatheredPace:
    """The paces of the groups of a job, and the pressures that kept its ranks from running.

    `begun`: how many collectives each rank has begun, `newest`: when the newest one, on the driver's clock.
    `cost`: seconds of processor time of the host on which the answer took most. `set_up`: when each rank
    began and ended to make its group, on the driver's clock.
    """

    paces: Sequence[Pace]
    pressures: Mapping[int, Pressure] = field(default_factory=dict)
    cost: float = 0.0
    begun: Mapping[int, int] = field(default_factory=dict)
    newest: float = 0.0
    set_up: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    departures: Sequence[Departure] = ()


def gather_pace(job: str, channels: Mapping[str, Channel]) -> GatheredPace:
    """Ask all hosts at once. A host that does not answer is left out."""
    answers = on_every(channels, lambda host: _ask_arrivals(job, channels[host])).results
    arriving = [
        Arriving(int(number), host, arrivals, clock)
        for host, (answer, clock) in answers.items()
        for number, arrivals in answer.ranks.items()
    ]
    arriving.sort(key=lambda rank: rank.number)
    tracks = [(rank.clock, track) for rank in arriving for track in rank.arrivals.tracks if track.at]
    newest = [track.at[-1] - clock.ahead for clock, track in tracks if track.group != SETUP]
    return GatheredPace(
        paces(arriving),
        {rank.number: rank.arrivals.pressure for rank in arriving if rank.arrivals.pressure},
        max((answer.cost for answer, _ in answers.values()), default=0.0),
        {rank.number: begun(rank.arrivals) for rank in arriving},
        max(newest, default=0.0),
        {rank.number: times for rank in arriving if (times := _set_up(rank))},
        departures(arriving),
    )


def _set_up(rank: Arriving) -> tuple[float, float] | None:
    """The begin and end of a rank's set-up on the driver's clock."""
    times, ahead = rank.arrivals.set_up, rank.clock.ahead
    return (times[0] - ahead, times[1] - ahead) if times else None


def gather_begun(job: str, channels: Mapping[str, Channel]) -> dict[int, int]:
    """How many collectives each recorded rank has begun. A host that does not answer is left out."""
    answers = ask_every(
        channels, ARRIVALS, BEGUN_SECONDS, lambda host: {"job": job, "host": channels[host].host}
    ).results
    return {
        int(rank): begun(arrivals) for answer in answers.values() for rank, arrivals in answer.ranks.items()
    }


def begun(arrivals: Arrivals) -> int:
    """The number of collectives: calls and backends count the same ones."""
    by_group: dict[str, int] = {}
    for track in arrivals.tracks:
        if track.group != SETUP:
            by_group[track.group] = max(track.count, by_group.get(track.group, 0))
    return sum(by_group.values())


def _ask_arrivals(job: str, channel: Channel) -> tuple[HostArrivals, HostClock]:
    answer = channel.ask(ARRIVALS, job=job, host=channel.host, seconds=ARRIVALS_SECONDS)
    return answer, HostClock(*channel.measure_clock()) if answer.ranks else HostClock()
