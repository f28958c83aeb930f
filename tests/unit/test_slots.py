"""`--slots`: how many slots hosts get from what they have."""

from __future__ import annotations

import dataclasses

import pytest

from muster.deploy.core.errors import UsageError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.slots import NO_GPU, counted_slots, slot_rule
from tests.unit.plans import NODE

HOSTS = hostfile.parse("big slots=2\nsmall\nsilent slots=3\n")
FACTS = {
    "big": dataclasses.replace(NODE, cores=64, gpus=8),
    "small": dataclasses.replace(NODE, cores=4, gpus=0),
}


@pytest.mark.parametrize(
    ("text", "slots"), [("cores", [64, 4, 3]), ("auto", [8, 4, 3]), ("gpu", [8, 1, 3]), ("5", [5, 5, 5])]
)
def test_slots_are_counted_on_every_host_that_has_answered(text: str, slots: list[int]) -> None:
    hosts, _ = counted_slots(HOSTS, FACTS, slot_rule(text))
    assert [host.slots for host in hosts] == slots


def test_a_host_without_gpus_is_named_where_gpus_count() -> None:
    assert counted_slots(HOSTS, FACTS, "gpus")[1] == {"small": NO_GPU}
    assert [counted_slots(HOSTS, FACTS, rule)[1] for rule in ("cores", "auto", 4)] == [{}, {}, {}]


def test_more_cores_than_a_host_may_have_slots_are_that_many_slots() -> None:
    facts = {"big": dataclasses.replace(NODE, cores=1 << 16)}
    hosts, _ = counted_slots(HOSTS[:1], facts, "cores")
    assert hosts[0].slots == hostfile.MAX_SLOTS


def test_a_counted_slot_is_not_shown_as_the_default_of_the_file() -> None:
    hosts, _ = counted_slots(HOSTS, FACTS, "auto")
    assert [host.slots_by_default for host in hosts] == [False, False, False]


@pytest.mark.parametrize("text", ["GPUs", "0", "-1", "4.0", "1025", "٣", "99999"])
def test_a_rule_that_cannot_be_says_what_to_write(text: str) -> None:
    with pytest.raises(
        UsageError, match=f"--slots {text}: write gpus, cores, auto, or a number from 1 to 1024"
    ):
        slot_rule(text)
