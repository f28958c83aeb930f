"""Hosts that do not reach each other, looked for when a job stalls."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from muster.deploy.core.connect.requests.hosts import OPEN_PORT, HostsReached, OpenPort, Reached
from muster.deploy.core.connect.requests.request import Request
from muster.deploy.core.errors import MusterError
from muster.deploy.core.job.result import Failure
from muster.deploy.features.why.diagnosis import Explanation, RankStacks, explained, unreached_pairs
from tests.unit.plans import make_plan

ETH0 = {"node1": "10.0.0.1", "node2": "10.0.0.2", "node3": "10.0.0.3"}
ETH1 = {name: address.replace("10.0.0", "10.1.0") for name, address in ETH0.items()}

ENV = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "20123", "GLOO_SOCKET_IFNAME": "eth0"}


class Channel:
    """A host that reaches every address but those of `cut`; None as `cut`: it does not answer."""

    def __init__(self, host: str, cut: frozenset[str] | None) -> None:
        self.host, self.cut = host, cut
        self.tried: list[str] = []

    def post(self, request: Request[Any], payload: bytes = b"", **words: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.cut is None:
            future.set_exception(MusterError("it does not answer", host=self.host))
        elif request is OPEN_PORT:
            future.set_result(OpenPort(20123))
        else:
            future.set_result(HostsReached({one["host"]: self.reached(one) for one in words["targets"]}))
        return future

    def reached(self, target: dict[str, Any]) -> Reached:
        assert self.cut is not None
        self.tried += target["addresses"]
        open_ = {address: "eth0" for address in target["addresses"] if address not in self.cut}
        shut = {address: "timed out" for address in target["addresses"] if address in self.cut}
        return Reached(open_, shut)

    def wait(self, future: Future[Any], seconds: float, since: float | None = None) -> Any:
        return future.result()


def looked_for(cuts: dict[str, frozenset[str] | None]) -> tuple[list[str], dict[str, Channel]]:
    interfaces = {name: {ETH0[name]: "eth0", ETH1[name]: "eth1"} for name in ETH0}
    facts = {name: SimpleNamespace(interfaces=interfaces[name]) for name in ETH0}
    cluster: Any = SimpleNamespace(facts=facts, addresses=lambda host: list(interfaces[host.name]))
    channels: Any = {name: Channel(name, cuts.get(name, frozenset())) for name in ETH0}
    plan: Any = SimpleNamespace(hosts=[SimpleNamespace(host=host.host, env=ENV) for host in hosts()])
    return unreached_pairs(plan, cluster, channels), channels


def hosts() -> Any:
    return make_plan("node1\nnode2\nnode3").hosts


def test_a_pair_is_named_with_its_direction_and_address_also_if_another_network_is_well() -> None:
    said, channels = looked_for({"node2": frozenset({ETH0["node3"]})})
    assert said == ["node2 does not reach node3 at 10.0.0.3 (timed out)"]
    assert channels["node1"].tried == [ETH0["node2"], ETH0["node3"]], "the ranks' interface alone"


def test_hosts_that_all_reach_each_other_are_not_named_and_one_that_is_silent_blames_nobody() -> None:
    assert looked_for({})[0] == []
    assert looked_for({"node3": None})[0] == []


def test_a_verdict_names_the_pair_and_no_rank() -> None:
    stacks = RankStacks({0: ("poll",), 1: ("all_reduce",), 2: ("all_reduce",)}, {})
    stalled = Failure("stall", "no rank has printed anything", 3, at=1.0)
    pairs = ("node2 does not reach node3 at 10.0.0.3 (timed out)",)
    verdict = explained(stalled, Explanation(stacks, None, pairs))
    assert verdict.reason == f"no rank has printed anything; {pairs[0]}"
    assert verdict.rank is None
