"""Asks every host how it is, all at once; a host that fails meanwhile is left out and explained."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..connect.answers import HEALTH, REACH_HOSTS, TRY_TO_OPEN_PORT, Answer, PortOrRefusal, Reached, Request
from ..connect.cluster import CLOCKS_AT_ONCE, Cluster
from ..connect.fanout import Outcome, Result, ask_every, on_every
from ..errors import HostError, MusterError
from .measurements import Clock, Examination, Examined
from .network import rank_addresses

# nvidia-smi, a name server and a slow disk may each take some seconds.
HEALTH_SECONDS = 40.0
# An agent gives up an address after 3 s; so many hosts it tries at most.
REACH_SECONDS = 15.0
MOST_PEERS = 64


def examine(cluster: Cluster) -> Examination:
    """Connect, and learn everything about every host that answers; leaves the cluster connected."""
    asked = _Asked(cluster)
    asked.connect()
    health = asked.all(HEALTH, HEALTH_SECONDS)
    ports = asked.ports()
    clocks = asked.clocks()
    reached = asked.reach(ports)
    return Examination(
        hosts={
            host.name: Examined(
                facts=cluster.facts[host.name],
                health=health[host.name],
                clock=clocks[host.name],
                addresses=tuple(cluster.addresses(host)),
                rendezvous=ports[host.name],
                reached=reached[host.name],
            )
            for host in cluster.hosts
            if host.name not in asked.errors
        },
        errors=asked.errors,
    )


class _Asked:
    """Questions to all hosts; one that does not answer, or not with sense, is asked nothing more."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.errors: dict[str, HostError] = {}
        self._nonces = {host.name: secrets.token_hex(8) for host in cluster.hosts}

    @property
    def names(self) -> list[str]:
        """The hosts that have answered everything so far."""
        return [host.name for host in self.cluster.hosts if host.name not in self.errors]

    def connect(self) -> None:
        """Start an agent on every host."""
        self.errors = {name: _as_host_error(name, error) for name, error in self.cluster.connect().items()}

    def all(
        self,
        request: Request[Answer],
        seconds: float,
        words: Callable[[str], Mapping[str, Any]] = lambda host: {},
    ) -> dict[str, Answer]:
        """What all hosts answer to one request."""
        channels = {name: self.cluster.channels[name] for name in self.names}
        return self._note(ask_every(channels, request, seconds, words))

    def ports(self) -> dict[str, int | HostError]:
        """A port of each host where the others may try to reach it, or why it has none."""
        answers = self.all(TRY_TO_OPEN_PORT, REACH_SECONDS, lambda name: {"nonce": self._nonces[name]})
        return {name: _port(answer) for name, answer in answers.items()}

    def clocks(self) -> dict[str, Clock]:
        """The clock of every host; not all at once."""
        channels = self.cluster.channels
        measured = on_every(
            self.names, lambda name: Clock(*channels[name].measure_clock()), at_once=CLOCKS_AT_ONCE
        )
        return self._note(measured)

    def reach(self, ports: Mapping[str, int | HostError]) -> dict[str, dict[str, Reached]]:
        """For every host, how it reaches the others that have a port, and itself: all, or `peers` of many."""
        targets = [
            {
                "host": host.name,
                "addresses": self.cluster.addresses(host),
                "port": ports[host.name],
                "nonce": self._nonces[host.name],
            }
            for host in self.cluster.hosts
            if host.name not in self.errors and not isinstance(ports[host.name], HostError)
        ]
        places = {target["host"]: place for place, target in enumerate(targets)}
        reached: dict[str, dict[str, Reached]] = {name: {} for name in self.names}

        def words(name: str) -> dict[str, Any]:
            return {"targets": [targets[number] for number in peers(places.get(name, 0), len(targets))]}

        answers = self.all(REACH_HOSTS, REACH_SECONDS, words)
        reached |= {name: dict(answer.reached) for name, answer in answers.items()}
        return self._again(targets, reached)

    def _again(
        self, targets: Sequence[dict[str, Any]], reached: dict[str, dict[str, Reached]]
    ) -> dict[str, dict[str, Reached]]:
        """The same, with a second try at the addresses of ranks that were not reached.

        A host that is reached at one address is given little time at its others.
        """
        places = rank_addresses(
            self.cluster.hosts[0].name,
            self.cluster.facts,
            {target["host"]: target["addresses"] for target in targets},
            {name: reached[name] for name in self.names},
        )
        late = {
            name: [
                {**target, "addresses": list(places[target["host"]])}
                for target in targets
                if target["host"] in places and _is_open(reached[name], target["host"], places)
            ]
            for name in self.names
        }
        late = {name: those for name, those in late.items() if those}
        channels = {name: self.cluster.channels[name] for name in late}
        asked = ask_every(channels, REACH_HOSTS, REACH_SECONDS, lambda name: {"targets": late[name]})
        for name, answer in self._note(asked).items():
            for target, seen in answer.reached.items():
                first = reached[name].get(target, Reached())
                reached[name][target] = Reached(
                    {**first.interfaces, **seen.interfaces}, {**first.refused, **seen.refused}
                )
        return reached

    def _note(self, outcome: Outcome[Result]) -> dict[str, Result]:
        """The results; a host with an error is asked nothing more."""
        self.errors |= {name: _as_host_error(name, error) for name, error in outcome.errors.items()}
        return outcome.results


def _is_open(reached: Mapping[str, Reached], target: str, places: Mapping[str, Sequence[str]]) -> bool:
    """Whether a host was reached, but neither reached nor refused where its ranks will be."""
    seen = reached.get(target)
    if seen is None or not seen.interfaces:
        return False
    return not any(place in seen.interfaces or place in seen.refused for place in places[target])


def peers(number: int, hosts: int) -> list[int]:
    """Which of so many hosts one of them tries to reach, itself among them: all, as long as they are few.

    Of many: the head, those that follow in the list, and others all over it. So each is tried by as many, and
    what a rack or a network cuts off shows; a single pair may not. All pairs would be too many.
    """
    if hosts <= MOST_PEERS:
        return list(range(hosts))
    half = MOST_PEERS // 2
    steps = {*range(half), *(hosts * step // half for step in range(half))}
    return sorted({0, *((number + step) % hosts for step in steps)})


def _port(answer: PortOrRefusal) -> int | HostError:
    return answer.port or HostError("port.none-free", answer.refused or "it gave no port")


def _as_host_error(name: str, error: MusterError) -> HostError:
    """The error of one host, without its name in front."""
    if isinstance(error, HostError):
        return HostError(error.kind, error.text, error.remedy)
    return HostError("host.failed", error.reason, f"try: ssh {name}")
