"""The rounds in which the links of a cluster are measured."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from muster.deploy.features.bench.programs.links import one_at_a_time, rounds


@pytest.mark.parametrize("hosts", [2, 3, 4, 5, 8, 16, 17, 255, 256])
def test_every_two_hosts_meet_once_and_nobody_meets_two_at_a_time(hosts: int) -> None:
    schedule = rounds(hosts)
    met = Counter(pair for pairs in schedule for pair in pairs)
    assert met == Counter(itertools.combinations(range(hosts), 2))
    for pairs in schedule:
        busy = [host for pair in pairs for host in pair]
        assert len(busy) == len(set(busy))


@pytest.mark.parametrize(("hosts", "count"), [(2, 1), (3, 3), (4, 3), (255, 255), (256, 255)])
def test_no_more_rounds_than_needed(hosts: int, count: int) -> None:
    assert len(rounds(hosts)) == count


def test_all_hosts_but_one_of_an_odd_number_are_busy_in_each_round() -> None:
    assert {len(pairs) for pairs in rounds(256)} == {128}
    assert {len(pairs) for pairs in rounds(255)} == {127}


@pytest.mark.parametrize("hosts", [0, 1])
def test_without_two_hosts_nobody_meets(hosts: int) -> None:
    assert [pair for pairs in rounds(hosts) for pair in pairs] == []


def test_in_turn_there_is_one_pair_in_each_round() -> None:
    alone = one_at_a_time(rounds(5))
    assert [len(pairs) for pairs in alone] == [1] * 10
