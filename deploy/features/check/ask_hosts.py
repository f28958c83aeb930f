"""Asks all hosts at once about their state. A host that fails is left out with its error."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.connect.cluster import CLOCKS_AT_ONCE, Cluster
from ...core.connect.fanout import HostOutcomes, Result, ask_every, on_every
from ...core.connect.requests.hosts import OPEN_PORT, REACH, Reached
from ...core.connect.requests.request import Answer, Request
from ...core.errors import HostError, MusterError
from ...core.hosts.rendezvous import no_port, peers
from ..leases.messages import LEASES, HostLeases
from .host_reports import Clock, HostReport, HostReports
from .messages import HEALTH
from .network import rank_addresses

# nvidia-smi, a name server and a slow disk may each take some seconds.
HEALTH_SECONDS = 40.0
# An agent gives up on an address after 3 s. It tries at most MOST_PEERS hosts (core/hosts/rendezvous.py).
REACH_SECONDS = 15.0


def ask_hosts(cluster: Cluster) -> HostReports:
    """Connect to every host, and measure those that answer. The cluster stays connected."""
    survey = _Survey(cluster)
    survey.connect()
    health = survey.all(HEALTH, HEALTH_SECONDS)
    leases = survey.leases()
    ports = survey.ports()
    clocks = survey.clocks()
    reached = survey.reach(ports)
    return HostReports(
        hosts={
            host.name: HostReport(
                facts=cluster.facts[host.name],
                health=health[host.name],
                clock=clocks[host.name],
                addresses=tuple(cluster.addresses(host)),
                rendezvous=ports[host.name],
                reached=reached[host.name],
                leases=leases.get(host.name),
            )
            for host in cluster.hosts
            if host.name not in survey.errors
        },
        errors=survey.errors,
    )


class _Survey:
    """Asks all hosts. A host without a valid answer is not asked again."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.errors: dict[str, HostError] = {}
        self._nonces = {host.name: secrets.token_hex(8) for host in cluster.hosts}

    @property
    def names(self) -> list[str]:
        """The names of the hosts that have answered every question so far."""
        return [host.name for host in self.cluster.hosts if host.name not in self.errors]

    def connect(self) -> None:
        """Start an agent on every host."""
        errors = self.cluster.connect()
        self.errors = {name: _as_host_error(name, error) for name, error in errors.items()}

    def all(
        self,
        request: Request[Answer],
        seconds: float,
        arguments: Callable[[str], Mapping[str, Any]] = lambda host: {},
    ) -> dict[str, Answer]:
        """The answer of each host to a request."""
        channels = {name: self.cluster.channels[name] for name in self.names}
        return self._note(ask_every(channels, request, seconds, arguments))

    def leases(self) -> dict[str, HostLeases]:
        """Who has the GPUs of the hosts that have some."""
        facts = self.cluster.facts
        channels = {name: self.cluster.channels[name] for name in self.names if facts[name].devices}
        return ask_every(channels, LEASES, HEALTH_SECONDS).results

    def ports(self) -> dict[str, int | HostError]:
        """For each host, a port that the others can try to reach, or the error that it has none."""
        arguments = {name: {"nonce": nonce, "probe": True} for name, nonce in self._nonces.items()}
        answers = self.all(OPEN_PORT, REACH_SECONDS, arguments.__getitem__)
        return {name: answer.port or no_port(answer.refused) for name, answer in answers.items()}

    def clocks(self) -> dict[str, Clock]:
        """Measure the clock of every host, only some hosts at a time."""
        channels = self.cluster.channels
        measured = on_every(
            self.names, lambda name: Clock(*channels[name].measure_clock()), at_once=CLOCKS_AT_ONCE
        )
        return self._note(measured)

    def reach(self, ports: Mapping[str, int | HostError]) -> dict[str, dict[str, Reached]]:
        """How each host reaches itself and the other hosts that have a port; of many hosts, its `peers`."""
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
        indexes = {target["host"]: index for index, target in enumerate(targets)}
        reached: dict[str, dict[str, Reached]] = {name: {} for name in self.names}

        def arguments(name: str) -> dict[str, Any]:
            return {"targets": [targets[index] for index in peers(indexes.get(name, 0), len(targets))]}

        answers = self.all(REACH, REACH_SECONDS, arguments)
        reached |= {name: dict(answer.reached) for name, answer in answers.items()}
        return self._again(targets, reached)

    def _again(
        self, targets: Sequence[dict[str, Any]], reached: dict[str, dict[str, Reached]]
    ) -> dict[str, dict[str, Reached]]:
        """Try the unreached addresses of ranks a second time.

        The first try gives the other addresses of a host little time once one of them was reached.
        """
        addresses = rank_addresses(
            self.cluster.hosts[0].name,
            self.cluster.facts,
            {target["host"]: target["addresses"] for target in targets},
            {name: reached[name] for name in self.names},
        )
        again = {
            name: [
                {**target, "addresses": list(addresses[target["host"]])}
                for target in targets
                if target["host"] in addresses and _is_open(reached[name], target["host"], addresses)
            ]
            for name in self.names
        }
        channels = {name: self.cluster.channels[name] for name, retried in again.items() if retried}
        outcomes = ask_every(channels, REACH, REACH_SECONDS, lambda name: {"targets": again[name]})
        for name, answer in self._note(outcomes).items():
            for target, seen in answer.reached.items():
                first = reached[name].get(target, Reached())
                reached[name][target] = Reached(
                    {**first.interfaces, **seen.interfaces}, {**first.refused, **seen.refused}
                )
        return reached

    def _note(self, outcome: HostOutcomes[Result]) -> dict[str, Result]:
        """Return the results, and keep the errors: a host with an error is not asked again."""
        self.errors |= {name: _as_host_error(name, error) for name, error in outcome.errors.items()}
        return outcome.results


def _is_open(reached: Mapping[str, Reached], target: str, addresses: Mapping[str, Sequence[str]]) -> bool:
    """Whether a host was reached, but the addresses of its ranks neither answered nor refused."""
    seen = reached.get(target)
    if seen is None or not seen.interfaces:
        return False
    return not any(address in seen.interfaces or address in seen.refused for address in addresses[target])


def _as_host_error(name: str, error: MusterError) -> HostError:
    """The error of one host, without its name in front."""
    if isinstance(error, HostError):
        return HostError(error.kind, error.text, error.remedy)
    return HostError("host.failed", error.reason, f"try: muster shell {name}")
