"""Whom a check blames: of hosts that do not reach each other, and of clocks that differ."""

from __future__ import annotations

import pytest

from muster.deploy.core.connect.requests.hosts import Reached
from muster.deploy.features.check.host_reports import Clock
from muster.deploy.features.check.judge import unfit
from tests.unit.test_check import DROPPED, THREE, found


@pytest.mark.parametrize(
    ("cut", "blamed"),
    [
        ("13 23", {"node3": "no other host can connect to its port 20003: node1 tried 10.0.0.3: timed out"}),
        ("21 31", {"node1": "no other host can connect to its port 20001: node2 tried 10.0.0.1: timed out"}),
        ("12 13 23 32", dict.fromkeys(["node2", "node3"], "no other host can connect to its port 2000")),
        ("12 13 21 23", dict.fromkeys(["node1", "node2"], "cannot connect to any other host: node")),
        (
            "12 13 21 23 31 32",
            dict.fromkeys(["node1", "node2", "node3"], "cannot connect to any other host:"),
        ),
    ],
    ids=[
        "a worker is shut",
        "the head is shut",
        "two are shut",
        "two reach nobody",
        "nobody reaches anybody",
    ],
)
def test_of_hosts_that_do_not_reach_each_other_those_at_the_end_of_all_failures_are_to_blame(
    cut: str, blamed: dict[str, str]
) -> None:
    pairs = [(f"node{pair[0]}", f"node{pair[1]}") for pair in cut.split()]
    findings = found(THREE, cut=dict.fromkeys(pairs, DROPPED))
    assert [(one.id, one.host, one.peer) for one in findings] == [
        ("pair.unreachable", name, "") for name in blamed
    ]
    assert [one.text[: len(blamed[one.host])] for one in findings] == list(blamed.values())
    assert unfit(findings) == blamed.keys()


def test_a_host_that_reaches_nobody_and_one_that_accepts_nobody_are_told_apart() -> None:
    cut = dict.fromkeys([("node1", "node2"), ("node1", "node3"), ("node2", "node3")], DROPPED)
    said = {one.host: one.text for one in found(THREE, cut=cut)}
    assert said["node1"].startswith("cannot connect to any other host: node2 at 10.0.0.2")
    assert said["node3"].startswith("no other host can connect to its port 20003")
    both = dict.fromkeys(
        [("node1", "node3"), ("node2", "node3"), ("node3", "node1"), ("node3", "node2")], "-"
    )
    assert [one.host for one in found(THREE, cut=both)] == ["node3", "node3"]


def test_of_two_hosts_the_pair_is_named() -> None:
    (finding,) = found("node[1-2]", cut={("node1", "node2"): DROPPED})
    assert (finding.host, finding.peer) == ("node1", "node2")


@pytest.mark.parametrize(
    ("ahead", "named"),
    [
        ([5.0], {"node1": "5.000 s ahead of this machine's"}),
        ([5.0, 0.0], {"node1": "5.000 s ahead of the others"}),
        ([0.0, 5.0], {"node2": "5.000 s ahead of the others"}),
        ([5.0, -5.0], {"node1": "5.000 s ahead of the others", "node2": "5.000 s behind the others"}),
        ([5.0, 5.0], {"": "5.000 s behind the others"}),
        ([0.0, 5.0, 5.0], dict.fromkeys(["node2", "node3"], "5.000 s ahead of the others")),
    ],
)
def test_where_clocks_have_no_majority_this_machines_counts(
    ahead: list[float], named: dict[str, str]
) -> None:
    clocks = {f"node{n}": {"clock": Clock(seconds, 0.001)} for n, seconds in enumerate(ahead, 1)}
    said = {one.host: one.text for one in found(f"node[1-{len(ahead)}]", other=clocks)}
    assert said == {name: f"its clock is {text}" for name, text in named.items()}


def test_a_pair_that_only_another_network_connects_than_the_ranks_is_found() -> None:
    number = {"node1": 1, "node2": 2, "node3": 3}
    both = {name: {f"10.0.0.{n}": "eth0", f"10.1.0.{n}": "eth1"} for name, n in number.items()}

    def reached(source: str) -> dict[str, Reached]:
        seen = {target: Reached(dict(both[target])) for target in number}
        if source == "node3":  # the ranks' network drops what it sends to node2; the other one is well
            seen["node2"] = Reached({"10.1.0.2": "eth1"}, {"10.0.0.2": DROPPED})
        return seen

    findings = found(
        THREE,
        facts={name: {"addresses": tuple(own), "interfaces": own} for name, own in both.items()},
        other={name: {"addresses": tuple(both[name]), "reached": reached(name)} for name in number},
    )
    assert [(one.id, one.host, one.peer) for one in findings] == [("pair.unreachable", "node3", "node2")]
    assert f"10.0.0.2: {DROPPED}" in findings[0].text
