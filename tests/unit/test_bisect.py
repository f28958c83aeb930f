"""The search for the host or link with which a collective fails, on simulated clusters of 16 hosts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from muster.deploy.check.bisect import Culprit, culprits, of_culprit

HOSTS = tuple(f"node{number:02}" for number in range(1, 17))
MOST_TRIES = 24


class Simulated:
    """A cluster with bad hosts and links, which counts the collectives."""

    def __init__(self, bad: Sequence[Sequence[str]]) -> None:
        self.bad, self.tries = [frozenset(each) for each in bad], 0

    def fails(self, hosts: Sequence[str]) -> bool:
        assert len(hosts) > 1, "a collective of one host proves nothing"
        self.tries += 1
        return any(each <= frozenset(hosts) for each in self.bad)

    def found(self) -> set[frozenset[str]]:
        return {frozenset(each.hosts) for each in culprits(HOSTS, self.fails)}


@pytest.mark.parametrize("seed", range(20))
def test_a_planted_host_or_link_is_named(seed: int) -> None:
    cluster = Simulated([random.Random(seed).sample(HOSTS, 1 + seed % 2)])  # noqa: S311
    assert cluster.found() == {*cluster.bad}
    assert cluster.tries <= MOST_TRIES


@pytest.mark.parametrize("seed", range(20))
def test_two_planted_hosts_are_named(seed: int) -> None:
    cluster = Simulated([[host] for host in random.Random(seed).sample(HOSTS, 2)])  # noqa: S311
    assert cluster.found() == {*cluster.bad}
    assert cluster.tries <= 2 * MOST_TRIES


def test_a_host_and_a_link_elsewhere_are_named() -> None:
    cluster = Simulated([["node03"], ["node05", "node12"]])
    assert cluster.found() == {*cluster.bad}


def test_nobody_is_accused_where_all_hosts_work_and_one_collective_shows_it() -> None:
    cluster = Simulated([])
    assert (cluster.found(), cluster.tries) == (set(), 1)


def test_a_finding_has_the_reason_and_the_command_that_keeps_jobs_off_the_host() -> None:
    host, link = (of_culprit(Culprit(hosts), "timed out") for hosts in (("node3",), ("node1", "node2")))
    assert (host.id, host.host, host.peer) == ("bisect.host", "node3", "")
    assert host.text == "every all_reduce with it fails: timed out"
    assert "muster hosts drain node3" in host.remedy
    assert (link.id, link.host, link.peer) == ("bisect.link", "node1", "node2")


@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_few_hosts_are_judged_as_far_as_their_number_allows(number: int) -> None:
    hosts = HOSTS[:number]
    for bad in itertools.chain(itertools.combinations(hosts, 1), itertools.combinations(hosts, 2)):
        found = [set(each.hosts) for each in culprits(hosts, Simulated([bad]).fails)]
        # Two hosts that fail together look the same; so do one of three and its two links.
        assert found == [{*bad}] or number == 2, bad
