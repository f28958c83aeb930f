"""Which ranks are late, from simulated times of arrival: stragglers, balanced runs, clocks that are wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.deploy.features.why.lateness import Arriving, HostClock, Pace, departures
from muster.deploy.features.why.messages import CallSite
from tests.unit.paces import BEGAN, BUCKETS, GRADIENTS, LOSS, Run, pace

SEEDS = range(3)
NO_CLOCKS: dict[str, HostClock] = {}


def pace_of(ranks: list[Arriving], clocks: dict[str, HostClock] = NO_CLOCKS) -> Pace:
    found = pace(ranks, clocks)
    assert found
    return found


def paced(run: Run, clocks: dict[str, HostClock] = NO_CLOCKS) -> Pace:
    return pace_of(run.arriving(), clocks)


def late_of(ranks: list[Arriving]) -> list[int]:
    return [rank.rank for rank in pace_of(ranks).late]


def late(run: Run, clocks: dict[str, HostClock] = NO_CLOCKS) -> list[int]:
    return [rank.rank for rank in paced(run, clocks).late]


def test_a_rank_that_is_late_in_every_step_is_named_with_how_late_it_is_and_to_what() -> None:
    found = paced(Run(slower=lambda rank, step, part: 0.03 * (rank == 2)))
    (rank,) = found.late
    assert (rank.rank, rank.host, rank.site) == (2, "node3", GRADIENTS)
    assert rank.late == pytest.approx(0.03, abs=0.005)
    assert found.step_seconds == pytest.approx(0.13, abs=0.01)
    assert rank.own == pytest.approx(0.13, abs=0.01)
    assert [other.own for other in found.ranks[:2]] == pytest.approx([0.1, 0.1], abs=0.01)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("sites", [(GRADIENTS,), (GRADIENTS, LOSS), BUCKETS, (*BUCKETS, LOSS)])
@pytest.mark.parametrize("part", [0, -1])
def test_it_is_named_in_whatever_part_it_is_slow(ranks: int, sites: tuple[CallSite, ...], part: int) -> None:
    slow = part % len(sites)
    for seed in SEEDS:
        run = Run(ranks, 40, lambda rank, _, at: 0.04 * (rank == 1 and at == slow), sites, seed=seed)
        assert late(run) == [1], seed


def test_thirty_steps_after_it_becomes_slow_it_is_named_and_since_when() -> None:
    for seed in SEEDS:
        run = Run(steps=150, slower=lambda rank, step, part: 0.03 * (rank == 1 and step >= 120), seed=seed)
        (rank,) = paced(run).late
        assert rank.since == pytest.approx(BEGAN + 12, abs=0.5)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("sites", [(GRADIENTS,), (GRADIENTS, LOSS), (*BUCKETS, LOSS)])
def test_nobody_is_named_in_a_balanced_run(ranks: int, sites: tuple[CallSite, ...], noise: float) -> None:
    for seed in SEEDS:
        assert not late(Run(ranks, 60, sites=sites, noise=noise, seed=seed)), seed


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_that_are_slow_in_turn_are_balanced(ranks: int) -> None:
    assert not late(Run(ranks, 60, lambda rank, step, part: 0.2 * (step % ranks == rank)))


def test_one_long_pause_in_many_steps_is_no_straggler() -> None:
    assert not late(Run(3, 60, lambda rank, step, part: 5.0 * (rank == 0 and step % 20 == 0)))


def test_a_lateness_of_less_than_a_twenty_fifth_of_a_step_is_not_named() -> None:
    assert not late(Run(3, 60, lambda rank, step, part: 0.0035 * (rank == 0)))


def test_a_rank_that_was_late_but_no_longer_is_is_not_named() -> None:
    assert not late(Run(3, 100, lambda rank, step, part: 0.1 * (rank == 0 and step < 60)))


def test_all_ranks_of_a_slow_host_are_named() -> None:
    run = Run(8, 40, lambda rank, step, part: 0.05 * (rank in {2, 3}), per_host=2)
    assert sorted(late(run)) == [2, 3]


# -- clocks --


def test_clocks_that_are_wrong_by_what_was_measured_change_nothing() -> None:
    clocks = {
        "node1": HostClock(40.0, 0.001),
        "node2": HostClock(-3.0, 0.001),
        "node3": HostClock(0.5, 0.001),
    }
    ahead = {host: clock.ahead for host, clock in clocks.items()}
    assert not late(Run(ahead=ahead), clocks)
    assert late(Run(slower=lambda rank, step, part: 0.03 * (rank == 2), ahead=ahead), clocks) == [2]


def test_an_error_of_the_clocks_within_their_uncertainty_is_no_lateness() -> None:
    for wrong in (0.02, -0.02, 0.05):
        clocks = {f"node{number}": HostClock(0.0, 0.02) for number in (1, 2, 3)}
        assert not late(Run(ahead={"node2": wrong}), clocks)


def test_a_lateness_beyond_the_uncertainty_of_the_clocks_is_named_all_the_same() -> None:
    clocks = {f"node{number}": HostClock(0.0, 0.02) for number in (1, 2, 3)}
    assert late(Run(slower=lambda rank, step, part: 0.2 * (rank == 1)), clocks) == [1]


def test_ranks_of_one_host_need_no_clock() -> None:
    clocks = {"node1": HostClock(0.0, 10.0)}
    run = Run(3, slower=lambda rank, step, part: 0.03 * (rank == 1), per_host=3, ahead={"node1": 7.0})
    assert late(run, clocks) == [1]


# -- records that are not as simple --


def test_equal_collectives_of_which_only_the_first_of_a_step_is_late_are_taken_together() -> None:
    """As where a program reduces the gradient of each of twelve equal layers on its own."""
    layers = (GRADIENTS,) * 12
    for seed in SEEDS:
        run = Run(3, 20, lambda rank, _, part: 0.06 * (rank == 2 and part == 0), layers, seed=seed)
        assert late(run) == [2], seed
        assert not late(replace(run, slower=lambda rank, step, part: 0.0))


def test_another_part_of_the_program_before_changes_nothing() -> None:
    """As where a program has trained one model, in which another rank was slow, and now trains the next."""
    for seed in SEEDS:
        earlier = Run(3, 40, lambda rank, _, part: 0.04 * (rank == 1), (GRADIENTS, LOSS) * 2, seed=seed)
        later = Run(3, 30, lambda rank, _, part: 0.04 * (rank == 2 and part == 0), BUCKETS[:2], seed=seed)
        assert late_of(follow(earlier, later)) == [2], seed
        assert late_of(follow(earlier, replace(later, slower=lambda rank, step, part: 0.0))) == []


def follow(earlier: Run, later: Run) -> list[Arriving]:
    """The ranks of a run that goes on as another."""
    ranks = []
    for first, second in zip(earlier.arriving(), later.arriving(), strict=True):
        (before,), (after,) = first.arrivals.tracks, second.arrivals.tracks
        places = len(first.arrivals.sites)
        track = replace(
            before,
            count=before.count + after.count,
            seqs=before.seqs + tuple(before.count + seq for seq in after.seqs),
            at=before.at + tuple(at + 1000 for at in after.at),
            sites=before.sites + tuple(site + places for site in after.sites),
        )
        sites = (*first.arrivals.sites, *second.arrivals.sites)
        ranks.append(replace(first, arrivals=replace(first.arrivals, sites=sites, tracks=(track,))))
    return ranks


def test_collectives_that_never_repeat_are_judged_in_equal_parts() -> None:
    sites = tuple(sized(number) for number in range(97))
    run = Run(3, 3, lambda rank, _, part: 0.005 * (rank == 1 and part % 6 == 0), sites, step_seconds=3.0)
    found = paced(run)
    assert not found.regular
    assert not found.late  # a few hundredths of the time
    assert late(replace(run, slower=lambda rank, _, part: 0.05 * (rank == 1 and part % 3 == 0))) == [1]


def sized(number: int) -> CallSite:
    return GRADIENTS._replace(bytes=number)


def test_only_collectives_that_every_rank_has_come_to_count() -> None:
    run = Run(3, 60, lambda rank, step, part: 0.03 * (rank == 2))
    ranks = run.arriving()
    (track,) = ranks[0].arrivals.tracks
    shorter = replace(track, seqs=track.seqs[:-5], at=track.at[:-5], sites=track.sites[:-5])
    ranks[0] = replace(ranks[0], arrivals=replace(ranks[0].arrivals, tracks=(shorter,)))
    assert late_of(ranks) == [2]


def test_where_ranks_have_nothing_in_common_there_is_no_pace() -> None:
    assert pace([]) is None
    assert pace(Run(1).arriving()) is None
    assert pace(Run(3, 5).arriving()) is None
    apart = Run(2, 300, most=50).arriving()
    (track,) = apart[0].arrivals.tracks
    early = replace(track, seqs=tuple(seq - 200 for seq in track.seqs))
    assert pace([replace(apart[0], arrivals=replace(apart[0].arrivals, tracks=(early,))), apart[1]]) is None


def test_the_count_of_the_backend_is_compared_where_it_has_more_than_the_calls() -> None:
    ranks = Run(3, 40, lambda rank, step, part: 0.03 * (rank == 1), BUCKETS).arriving()
    calls = Run(3, 3).arriving()
    both = [
        replace(rank, arrivals=replace(rank.arrivals, tracks=(*call.arrivals.tracks, *rank.arrivals.tracks)))
        for rank, call in zip(ranks, calls, strict=True)
    ]
    assert late_of(both) == [1]


def test_groups_of_one_name_but_other_ranks_do_not_wait_for_each_other() -> None:
    later = 0.05  # half a step: the second group has a beat of its own
    ranks = []
    for rank in Run(4, 40, noise=0.0).arriving():
        (track,) = rank.arrivals.tracks
        second = rank.number > 1
        at = tuple(time + later * second for time in track.at)
        own = replace(track, ranks="2-3" if second else "0-1", at=at)
        ranks.append(replace(rank, arrivals=replace(rank.arrivals, tracks=(own,))))
    assert late_of(ranks) == []
    assert {rank.rank for rank in pace_of(ranks).ranks} in ({0, 1}, {2, 3})


def test_lists_of_different_lengths_from_a_host_are_no_error() -> None:
    ranks = Run(3, 40).arriving()
    (track,) = ranks[1].arrivals.tracks
    bad = replace(track, at=track.at[:30], sites=(9999,) * 40)
    ranks[0], ranks[1] = ranks[1], ranks[0]
    ranks[0] = replace(ranks[0], arrivals=replace(ranks[0].arrivals, tracks=(bad,)))
    assert late_of(ranks) == []


def test_hundreds_of_ranks_are_judged_as_three_are() -> None:
    assert late(Run(300, 30, lambda rank, step, part: 0.05 * (rank == 200), per_host=8)) == [200]


def called(*sites_of_ranks: list[CallSite]) -> list[Arriving]:
    """Ranks that have called these collectives, one after the other."""
    of_ranks = []
    for rank, sites in enumerate(sites_of_ranks):
        (whole,) = Run(1, len(sites)).arriving()
        (track,) = whole.arrivals.tracks
        track = replace(track, sites=tuple(range(len(sites))))
        of_ranks.append(Arriving(rank, "node1", replace(whole.arrivals, sites=tuple(sites), tracks=(track,))))
    return of_ranks


WEIGHTS = CallSite("broadcast", "train.py:12", 4000, waits=True)
STEPS_OF_TWO = [WEIGHTS, GRADIENTS] * 5


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (
            [*STEPS_OF_TWO[:4], *STEPS_OF_TWO[5:]],  # it misses one broadcast
            "rank 2 left the order of the others at #5 of group 0 (train.py:88): "
            "it called all_reduce of 3.9 KiB, the others broadcast of 3.9 KiB (train.py:12)",
        ),
        (
            [*STEPS_OF_TWO[:7], GRADIENTS._replace(bytes=8), *STEPS_OF_TWO[8:]],
            "rank 2 left the order of the others at #8 of group 0 (train.py:88): "
            "it called all_reduce of 8 B, the others all_reduce of 3.9 KiB (train.py:88)",
        ),
        ([site._replace(where="other.py:1") for site in STEPS_OF_TWO], ""),
        ([*STEPS_OF_TWO[:9], WEIGHTS], ""),  # the last may be half written
        (STEPS_OF_TWO[:6], ""),
    ],
    ids=["a missed broadcast", "another size", "other lines", "the last one", "a rank that is behind"],
)
def test_a_rank_that_calls_others_is_named_with_the_first(odd: list[CallSite], says: str) -> None:
    found = departures(called(STEPS_OF_TWO, STEPS_OF_TWO, odd))
    assert [str(departure) for departure in found] == ([says] if says else [])


def test_of_two_ranks_that_call_different_collectives_neither_is_blamed() -> None:
    (found,) = departures(called(STEPS_OF_TWO, STEPS_OF_TWO[1:]))
    assert str(found) == (
        "the ranks call different collectives as #1 of group 0: rank 0 broadcast of 3.9 KiB (train.py:12), "
        "rank 1 all_reduce of 3.9 KiB (train.py:88)"
    )


def test_parts_of_unlike_sizes_are_no_other_order() -> None:
    parts = [CallSite("all_gather", "train.py:5", size, waits=True) for size in (8, 4000)]
    assert departures(called(*([part] * 4 for part in parts))) == []
