"""Launch and check decide alike where ranks meet and listen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import pytest

from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.connect.requests.hosts import OPEN_PORT, HostsReached, OpenPort, Reached
from muster.deploy.core.connect.requests.request import Request
from muster.deploy.core.errors import UnfitError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.host_facts import Facts
from muster.deploy.features.check.command import ask_hosts
from muster.deploy.features.check.messages import HEALTH
from muster.deploy.features.check.network import rank_addresses
from tests.unit.plans import NODE
from tests.unit.test_check import HEALTHY

Interfaces = Mapping[str, str]
ETH = {"10.0.0.%d": "eth0", "10.1.0.%d": "eth1"}
DOCKER = {"172.17.0.1": "docker0", **ETH}
IPV6 = {"fd00::%d": "eth0", "10.0.0.%d": "eth0"}


class Case(NamedTuple):
    """A cluster of three hosts, or one, and what follows. `cut`: addresses that no other host reaches."""

    interfaces: Interfaces
    meet: str
    ranks: Mapping[str, list[str]]
    hosts: str = "node1\nnode2\nnode3"
    network: str = ""
    cut: tuple[str, ...] = ()


CASES = {
    "two networks": Case(ETH, "10.0.0.1", {"node2": ["10.0.0.2"], "node3": ["10.0.0.3"]}),
    "first network cut": Case(
        ETH, "10.1.0.1", {"node2": ["10.1.0.2"], "node3": ["10.1.0.3"]}, cut=("10.0.0.1",)
    ),
    "addr=": Case(ETH, "10.1.0.1", {"node2": ["10.1.0.2"]}, hosts="node1 addr=10.1.0.1\nnode2\nnode3"),
    "addr= elsewhere": Case(ETH, "10.0.0.1", {"node2": ["10.1.0.2"]}, hosts="node1\nnode2 addr=10.1.0.2"),
    "docker bridge": Case(DOCKER, "10.0.0.1", {"node2": ["10.0.0.2"]}, cut=("172.17.0.1",)),
    "IPv6 first": Case(IPV6, "fd00::1", {"node2": ["fd00::2"]}),
    "one host": Case(ETH, "127.0.0.1", {}, hosts="node1"),
    "no common address": Case(ETH, "", {}, cut=("10.0.0.1", "10.1.0.1")),
    "--network 10.1.0.0/16": Case(ETH, "10.1.0.1", {"node2": ["10.1.0.2"]}, network="10.1.0.0/16"),
    "--network eth1": Case(ETH, "10.1.0.1", {"node3": ["10.1.0.3"]}, network="eth1"),
}


class Channel:
    """A host that reaches every address of the others but those in `cut`."""

    clock_offset = 0.0

    def __init__(self, facts: Facts, cut: tuple[str, ...]) -> None:
        self.facts, self.cut = facts, cut

    def post(self, request: Request[Any], **words: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self.answer(request, words))
        return future

    def ask(self, request: Request[Any], **words: Any) -> Any:
        return self.answer(request, words)

    def wait(self, future: Future[Any], seconds: float, since: float | None = None) -> Any:
        return future.result()

    def answer(self, request: Request[Any], words: Mapping[str, Any]) -> Any:
        if request is HEALTH:
            return HEALTHY
        if request is OPEN_PORT:
            return OpenPort(20123)
        tried = {target["host"]: target["addresses"] for target in words["targets"]}
        return HostsReached({host: self.reach(host, each) for host, each in tried.items()})

    def reach(self, host: str, addresses: list[str]) -> Reached:
        cut = self.cut if host != self.facts.hostname else ()
        shut = {address: "timed out" for address in addresses if address in cut}
        way = {address: self.way(address) for address in addresses if address not in shut}
        return Reached(way, shut)

    def way(self, address: str) -> str:
        """The own interface in the network of an address."""
        for own, interface in self.facts.interfaces.items():
            if own[:5] == address[:5]:
                return interface
        return "lo"

    def measure_clock(self, **which: Any) -> tuple[float, float]:
        return 0.0, 0.0

    def set_clock(self) -> None: ...


def cluster_of(case: Case) -> Cluster:
    hosts = hostfile.parse(case.hosts)
    cluster = Cluster(hosts, lambda host: None, network=case.network)  # type: ignore[arg-type,return-value]
    for number, host in enumerate(hosts, 1):
        own = {
            address % number if "%" in address else address: way for address, way in case.interfaces.items()
        }
        facts = dataclasses.replace(NODE, hostname=host.name, addresses=tuple(own), interfaces=own)
        cluster.facts[host.name] = facts
        cluster.channels[host.name] = Channel(facts, case.cut)  # type: ignore[assignment]
    return cluster


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_launch_and_check_decide_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(case)
    if not case.meet:
        with pytest.raises(UnfitError, match="node1 at none of 10"):
            cluster.survey()
    monkeypatch.setattr(Cluster, "connect", lambda cluster: {})
    seen = ask_hosts(cluster_of(case)).hosts
    listening = rank_addresses(
        "node1",
        {name: host.facts for name, host in seen.items()},
        {name: host.addresses for name, host in seen.items()},
        {name: host.reached for name, host in seen.items()},
    )
    if not case.meet:
        assert listening == {}
        return
    known = cluster.survey()
    assert known.rendezvous.address == case.meet
    addresses = {host.name: cluster.addresses(host) for host in hostfile.parse(case.hosts)}
    planned = known.rendezvous.rank_addresses("node1", addresses, cluster.facts)
    assert {name: list(planned.get(name, addresses[name])) for name in case.ranks} == case.ranks
    if not case.network:  # muster check has no such option
        assert listening["node1"] == (case.meet,)
        assert {name: list(listening.get(name, seen[name].addresses)) for name in case.ranks} == case.ranks
