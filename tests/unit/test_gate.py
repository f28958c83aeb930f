"""Which hosts fail the measurements before a launch, on simulated clusters of 16 hosts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import pytest

from muster.deploy.bench.gate import Measured, failing, of_hosts, with_new_hosts, with_new_links
from muster.deploy.bench.hosts import FigureLine, Speeds
from muster.deploy.bench.links import HostLink, Links

HOSTS = tuple(f"node{number:02}" for number in range(1, 17))
NOISE = 0.05
MADE = "2026-11-26 08:00 UTC"


class Cluster:
    """Hosts whose figures have noise, and of which some things are slow: a host, or a link as `a b`."""

    def __init__(self, seed: int, slow: Mapping[str, float], hosts: tuple[str, ...] = HOSTS) -> None:
        self._random, self._slow, self._hosts = random.Random(seed), slow, hosts  # noqa: S311

    def _noisy(self, value: float) -> float:
        return value * self._random.lognormvariate(0, NOISE)

    def _link(self, source: str, target: str) -> HostLink:
        slow = self._slow.get(f"{source} {target}", 1.0)
        return HostLink(source, target, self._noisy(3e-5 / slow), self._noisy(1e9 * slow))

    def measured(self) -> Measured:
        figures = tuple(
            tuple(
                FigureLine(name, self._noisy(100 * self._slow.get(host, 1.0)), "GFLOP/s")
                for name in ("matmul float32", "matmul bfloat16")
            )
            for host in self._hosts
        )
        links = tuple(self._link(a, b) for a, b in itertools.permutations(self._hosts, 2))
        speeds = Speeds("job", MADE, self._hosts, figures)
        return Measured(speeds, Links("job", MADE, "gloo", "cpu", self._hosts, links), {})

    def failed(self) -> set[str]:
        """The hosts that fail twice, as `launch --gate` decides."""
        return {*failing(self.measured(), None, None)} & {*failing(self.measured(), None, None)}


@pytest.mark.parametrize("seed", range(20))
def test_a_planted_host_or_link_is_named(seed: int) -> None:
    first, second = random.Random(seed).sample(HOSTS, 2)  # noqa: S311
    slow = {first: 0.6} if seed % 2 else {f"{first} {second}": 0.4}
    found = Cluster(seed, slow).failed()
    assert found == {first} if seed % 2 else len(found) == 1 and found < {first, second}


@pytest.mark.parametrize("seed", range(20))
def test_healthy_hosts_pass(seed: int) -> None:
    assert Cluster(seed, {}).failed() == set()


def test_a_host_with_several_slow_links_fails_and_not_their_other_ends() -> None:
    slow = {f"node03 {other}": 0.3 for other in ("node01", "node08", "node12")}
    reasons = failing(Cluster(1, slow).measured(), None, None)
    assert {*reasons} == {"node03"}
    assert reasons["node03"].startswith("the link node03 -> node")


def test_of_two_hosts_with_a_link_slower_than_before_the_later_fails() -> None:
    two = HOSTS[:2]
    before, now = Cluster(1, {}, two).measured(), Cluster(2, {"node01 node02": 0.3}, two).measured()
    assert failing(now, before.speeds, None) == {}
    reasons = failing(now, before.speeds, before.links)
    assert {*reasons} == {"node02"}
    assert "it was" in reasons["node02"]


def test_a_cluster_that_is_slow_as_a_whole_fails_by_its_baseline() -> None:
    before, now = Cluster(1, {}).measured(), Cluster(2, dict.fromkeys(HOSTS, 0.5)).measured()
    assert failing(now, None, None) == {}
    reasons = failing(now, before.speeds, None)
    assert {*reasons} == {*HOSTS}
    assert all("it had" in reason for reason in reasons.values())


def test_a_host_without_figures_fails() -> None:
    measured = Cluster(1, {}).measured()
    lost = Measured(measured.speeds, measured.links, {"node07": "it printed no figure"})
    assert failing(lost, None, None) == {"node07": "it printed no figure"}


def test_figures_of_ranks_are_added_for_each_host() -> None:
    lines = (FigureLine("memory copy", 2.0, "GB/s"),)
    gpus = [(FigureLine(f"gpu{number} matmul float32", 5.0, "GFLOP/s"),) for number in (0, 1)]
    ranks = Speeds("job", MADE, ("a", "a", "b", "c", "c"), (lines, lines, lines, *gpus))
    hosts = of_hosts(ranks)
    assert hosts.hosts == ("a", "b", "c")
    assert [[(line.name, line.value) for line in figures] for figures in hosts.figures] == [
        [("memory copy of 2 ranks", 4.0)],
        [("memory copy", 2.0)],
        [("gpu0 matmul float32", 5.0), ("gpu1 matmul float32", 5.0)],
    ]


def test_the_baseline_gets_new_hosts_only_and_none_that_failed() -> None:
    old, new = Cluster(1, {}, HOSTS[:2]).measured(), Cluster(2, {"node02": 0.5}, HOSTS[:4]).measured()
    assert old.links
    assert new.links
    speeds, links = (
        with_new_hosts(old.speeds, new.speeds, {"node04"}),
        with_new_links(old.links, new.links, {"node04"}),
    )
    figures = dict(zip(speeds.hosts, speeds.figures, strict=True))
    assert {*figures} == {"node01", "node02", "node03"}
    assert {*figures["node02"]} == {*old.speeds.figures[1]}
    assert {(link.source, link.target) for link in links.links} == {*itertools.permutations(HOSTS[:3], 2)}
    assert {*old.links.links} < {*links.links}
    assert Links.of_json(links.as_json()) == links
    assert Speeds.of_json(speeds.as_json()) == speeds
    assert with_new_hosts(None, new.speeds, ()) == new.speeds
