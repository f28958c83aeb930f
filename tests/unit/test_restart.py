"""Whether a job that failed starts again, and on which hosts."""

from __future__ import annotations

import dataclasses

import pytest

from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.stuck_processes import StuckProcess
from muster.deploy.core.job.restart_policy import (
    ASK_SECONDS,
    NETWORK_SECONDS,
    Decision,
    Policy,
    after,
    awaits_network,
    decide,
    pause,
    with_returned,
    without,
)
from muster.deploy.core.job.result import Failure, LaunchResult, interruption, stopped
from tests.unit.plans import make_plan

HOSTS = hostfile.parse("node[1-3] slots=2")
RANK = Failure("rank", "exit status 7", 7, host="node2", rank=3)
NETWORK = Failure("network", "all 3 hosts have been silent for 10 s", 1, at=100.0)
LOST = Failure("host", "the SSH connection to its agent is gone", 3, host="node3")
POLICY = Policy(max_restarts=2, min_hosts=2, hosts=HOSTS)
MISSING = ("ImportError", "train.py", "2")


def names(failure: Failure | None, attempt: int = 0, policy: Policy = POLICY) -> list[str]:
    return [host.name for host in decide(failure, HOSTS, attempt, policy).hosts]


def test_after_success_there_is_nothing_to_do_or_say() -> None:
    decision = decide(None, HOSTS, 0, POLICY)
    assert not decision.again
    assert not decision.message


def test_a_ranks_failure_leaves_the_hosts_as_they_are() -> None:
    decision = decide(RANK, HOSTS, 0, POLICY)
    assert decision.hosts == HOSTS
    assert decision.message == "rank 3 on node2: exit status 7; restart 1 of 2 on node1, node2, node3"


def test_a_network_that_this_machine_lost_takes_no_host_out() -> None:
    decision = decide(NETWORK, HOSTS, 0, POLICY)
    assert decision.hosts == HOSTS
    assert decision.message == (
        "all 3 hosts have been silent for 10 s; restart 1 of 2 on node1, node2, node3"
    )


@pytest.mark.parametrize(
    ("failure", "unreached", "seconds", "awaited"),
    [
        (NETWORK, ("node1", "node2", "node3"), 20.0, True),
        (NETWORK, ("node2", "node3"), 20.0, True),
        (NETWORK, ("node2",), 20.0, False),
        (NETWORK, ("node1", "node2", "node3"), NETWORK_SECONDS + 1.0, False),
        (LOST, ("node1", "node2"), 20.0, False),
        (None, ("node1", "node2"), 20.0, False),
    ],
)
def test_a_restart_waits_for_the_network_of_this_machine(
    failure: Failure | None, unreached: tuple[str, ...], seconds: float, awaited: bool
) -> None:
    found = awaits_network(failure, dict.fromkeys(unreached, "no route"), 100.0 + seconds)
    assert found is awaited


def test_a_hosts_failure_takes_it_out() -> None:
    decision = decide(LOST, HOSTS, 1, POLICY)
    assert [host.name for host in decision.hosts] == ["node1", "node2"]
    assert (
        decision.message == "node3: the SSH connection to its agent is gone; restart 2 of 2 on node1, node2"
    )


def test_too_few_hosts_are_the_end() -> None:
    policy = Policy(max_restarts=2, min_hosts=3)
    for failure in (LOST, dataclasses.replace(LOST, reason="protocol error: no frame")):
        decision = decide(failure, HOSTS, 0, dataclasses.replace(policy, hosts=HOSTS[:2]))
        assert not decision.again
        reason = f"no restart: 2 hosts left, --min-hosts 3 (node3: {failure.reason})"
        assert decision.message == reason


def test_a_host_that_may_be_back_is_asked_again_before_the_job_ends_for_too_few_hosts() -> None:
    first = decide(LOST, HOSTS, 0, POLICY, at=100.0)
    assert [host.name for host in first.hosts] == ["node1", "node2"]
    second = decide(dataclasses.replace(LOST, host="node2"), first.hosts, 1, first.policy, at=200.0)
    assert second.hosts == HOSTS
    assert second.message == (
        "node2: the SSH connection to its agent is gone; 1 host left, --min-hosts 2, so node[2-3] is asked "
        "again; restart 2 of 2 on node1, node2, node3"
    )
    unreached = {"node2": "refused", "node3": "refused"}
    assert second.policy.awaits(HOSTS, unreached, 201.0), "a host may need a second to be back"
    assert not second.policy.awaits(HOSTS, {"node2": "refused"}, 201.0), "two hosts are enough"
    partly = without({"node2": "refused"}, HOSTS, 1, second.policy, 201.0)
    assert [host.name for host in partly.hosts] == ["node1", "node3"]
    late = 200.0 + ASK_SECONDS
    assert not second.policy.awaits(HOSTS, unreached, late)
    assert without(unreached, HOSTS, 1, second.policy, late).message == (
        "no restart: 1 host left, --min-hosts 2 (node2: refused; node3: refused)"
    )


def test_a_host_with_a_process_that_cannot_be_ended_is_not_fit_for_the_next_attempt() -> None:
    stuck = {"node3": (StuckProcess(71, "python3", "D", rank=4),)}
    decision = decide(RANK, HOSTS, 0, POLICY, stuck=stuck)
    assert [host.name for host in decision.hosts] == ["node1", "node2"]
    assert decision.message == (
        "rank 3 on node2: exit status 7; node3: cannot be ended: rank 4, process 71 (python3), state D; "
        "restart 1 of 2 on node1, node2"
    )
    every = dataclasses.replace(POLICY, min_hosts=3)
    assert not decide(RANK, HOSTS, 0, every, stuck=stuck).again, "it is not asked again either"
    starved = {"node3": (StuckProcess(71, "python3", "R"),)}
    assert decide(RANK, HOSTS, 0, every, stuck=starved).hosts == HOSTS, "it only lacks a processor"
    one = dataclasses.replace(POLICY, min_hosts=1)
    both = decide(LOST, HOSTS, 0, one, stuck={"node1": stuck["node3"]})
    assert [host.name for host in both.hosts] == ["node2"]


def test_a_host_that_cannot_be_trusted_is_not_asked_again() -> None:
    liar = dataclasses.replace(LOST, reason="protocol error: no frame; check the host")
    assert not decide(liar, HOSTS, 0, dataclasses.replace(POLICY, min_hosts=3)).again


def test_a_failure_that_repeats_itself_before_the_first_step_is_not_tried_a_third_time() -> None:
    policy = dataclasses.replace(POLICY, max_restarts=5)
    first = decide(RANK, HOSTS, 0, policy, early=MISSING)
    assert first.hosts == HOSTS
    again = decide(RANK, HOSTS, 1, first.policy, early=MISSING)
    assert (again.hosts, again.message) == (
        (),
        "no restart: it failed twice in the same way before its first step",
    )
    assert decide(RANK, HOSTS, 1, first.policy, early=("ImportError", "train.py", "3")).again
    assert decide(RANK, HOSTS, 1, first.policy).again, "it made a step in between"
    lost = decide(LOST, HOSTS, 1, first.policy)
    assert not decide(RANK, lost.hosts, 2, lost.policy, early=MISSING).again, "a lost host is no success"


def test_a_host_on_which_alone_ranks_fail_is_left_out_the_second_time() -> None:
    policy = dataclasses.replace(POLICY, max_restarts=5)
    first = decide(RANK, HOSTS, 0, policy, early=MISSING, alone="node2")
    second = decide(RANK, HOSTS, 1, first.policy, early=MISSING, alone="node2")
    assert [host.name for host in second.hosts] == ["node1", "node3"]
    alone = "ranks failed there twice in a row, and on no other host"
    assert second.policy.left_out == {"node2": alone}
    assert second.message == f"rank 3 on node2: exit status 7; node2: {alone}; restart 2 of 5 on node1, node3"
    again = decide(RANK, second.hosts, 2, second.policy, early=MISSING, alone="node1")
    assert not again.again, "it is the program"
    strict = dataclasses.replace(first.policy, min_hosts=3)
    few = decide(RANK, HOSTS, 1, strict, early=MISSING, alone="node2")
    assert not few.again
    assert few.message.startswith("no restart: 2 hosts left, --min-hosts 3 (rank 3 on node2: exit status 7")
    assert "; node2: ranks failed there twice" in few.message
    single = dataclasses.replace(first.policy, min_hosts=1)
    one = decide(RANK, HOSTS[1:2], 1, single, early=MISSING, alone="node2")
    assert one.message == "no restart: it failed twice in the same way before its first step"


def test_after_a_step_a_host_on_which_alone_ranks_fail_is_left_out_if_enough_others_are_there() -> None:
    policy = dataclasses.replace(POLICY, max_restarts=5)
    first = decide(RANK, HOSTS, 0, policy, alone="node2")
    assert first.hosts == HOSTS
    second = decide(RANK, HOSTS, 1, first.policy, alone="node2")
    assert [host.name for host in second.hosts] == ["node1", "node3"]
    few = decide(RANK, HOSTS, 1, dataclasses.replace(first.policy, min_hosts=3), alone="node2")
    assert few.hosts == HOSTS
    assert "no other host, but too few hosts are left without it; restart 2 of 5" in few.message


@pytest.mark.parametrize(
    ("between", "alone", "left"),
    [
        (LOST, None, ["node1"]),
        (RANK, None, ["node1", "node2", "node3"]),
        (RANK, "node1", ["node1", "node2", "node3"]),
    ],
    ids=["a lost host", "ranks on several hosts", "ranks on another host"],
)
def test_only_failures_of_ranks_count_in_a_row(between: Failure, alone: str | None, left: list[str]) -> None:
    policy = dataclasses.replace(POLICY, max_restarts=5, min_hosts=1)
    first = decide(RANK, HOSTS, 0, policy, alone="node2")
    second = decide(between, HOSTS, 1, first.policy, alone=alone)
    third = decide(RANK, second.hosts, 2, second.policy, alone="node2")
    assert [host.name for host in third.hosts] == left


def test_a_host_that_is_asked_again_has_not_left_the_job() -> None:
    first = decide(LOST, HOSTS, 0, POLICY, at=100.0)
    assert first.policy.left_out == {"node3": LOST.reason}
    second = decide(dataclasses.replace(LOST, host="node2"), first.hosts, 1, first.policy, at=200.0)
    assert second.policy.left_out == {}


def test_a_lost_host_that_answers_again_is_the_last_host_of_the_next_attempt() -> None:
    lost = decide(dataclasses.replace(LOST, host="node1"), HOSTS, 0, POLICY)
    assert with_returned(lost.hosts, (), lost.policy) == (lost.hosts, lost.policy)
    hosts, policy = with_returned(lost.hosts, ("node1", "elsewhere"), lost.policy)
    assert [host.name for host in hosts] == ["node2", "node3", "node1"]
    assert (policy.away, policy.left_out) == (frozenset(), {})
    again = decide(dataclasses.replace(LOST, host="node2"), hosts, 1, policy)
    assert [host.name for host in again.hosts] == ["node3", "node1"], "enough hosts are left with it"


@pytest.mark.parametrize("why", ["a liar", "ranks", "stuck"])
def test_a_host_that_failed_otherwise_does_not_come_back(why: str) -> None:
    failure = dataclasses.replace(LOST, reason="protocol error: no frame") if why == "a liar" else RANK
    policy = dataclasses.replace(POLICY, min_hosts=1, alone="node2")
    stuck = {"node3": (StuckProcess(71, "python3", "D"),)} if why == "stuck" else {}
    lost = decide(failure, HOSTS, 0, policy, alone="node2" if why == "ranks" else None, stuck=stuck)
    assert len(lost.hosts) == 2
    assert with_returned(lost.hosts, ("node2", "node3"), lost.policy)[0] == lost.hosts


def test_no_more_restarts_than_were_allowed() -> None:
    assert names(RANK, attempt=1)
    assert decide(RANK, HOSTS, 2, POLICY).message == "no restart: that was the last of 2 restarts"
    assert not names(RANK, policy=Policy(0, 1))


def test_what_another_attempt_would_not_change_is_final() -> None:
    assert not names(dataclasses.replace(RANK, final=True))
    assert not names(interruption(KeyboardInterrupt(2), 0.0))
    assert not names(stopped("by alice on login", 143, 0.0))


def test_what_the_user_wrote_is_final_but_a_rank_may_exit_with_2() -> None:
    assert not names(Failure("launcher", "--np 9: the hosts have 6 slots", 2))
    assert names(dataclasses.replace(RANK, exit_status=2))


@pytest.mark.parametrize("kind", ["launcher", "start"])
def test_a_launcher_may_do_better_on_the_same_hosts(kind: str) -> None:
    assert len(names(Failure(kind, "mpirun ended", 1, host="node1"))) == 3


def test_every_host_that_is_unfit_now_is_named() -> None:
    decision = without({"node1": "no answer", "node3": "refused"}, HOSTS, 0, Policy(3, 1), 0.0)
    assert [host.name for host in decision.hosts] == ["node2"]
    assert decision.message == "node1: no answer; node3: refused; restart 1 of 3 on node2"


def test_the_pause_before_a_restart_grows_but_has_a_limit() -> None:
    result = LaunchResult(make_plan("node[1-3] slots=2"), 1.0, 2.0, NETWORK, {})
    pauses = [pause(result, HOSTS, attempt) for attempt in range(20)]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < pauses[-1] == pauses[-2]
    assert sum(pauses) < 60, "twenty restarts wait for a minute"


@pytest.mark.parametrize(
    ("failure", "stepped", "hosts", "waits"),
    [
        (RANK, True, HOSTS, False),
        (RANK, False, HOSTS, True),
        (LOST, True, HOSTS[:2], False),
        (LOST, True, HOSTS, True),
        (NETWORK, True, HOSTS, True),
    ],
    ids=["a rank", "a rank at once", "without the lost host", "with the lost host", "no network"],
)
def test_a_program_that_made_a_step_starts_again_without_a_pause(
    failure: Failure, stepped: bool, hosts: tuple[hostfile.Host, ...], waits: bool
) -> None:
    result = LaunchResult(make_plan("node[1-3] slots=2"), 1.0, 2.0, failure, {}, stepped=stepped)
    assert (pause(result, hosts, 0) > 0) == waits


TRACEBACK = ('  File "/home/ml/train.py", line 9, in step\n', "IndexError: index 7 is out of range\n")


def at_step(policy: Policy, attempt: int, line: str, tail: tuple[str, ...] = TRACEBACK) -> Decision:
    failure = dataclasses.replace(RANK, tail=tail)
    result = LaunchResult(make_plan("node[1-3] slots=2"), 90.0, 101.0, failure, {}, last_line=line)
    return after(result, HOSTS, attempt, policy, at=0.0)


@pytest.mark.parametrize(
    ("last_line", "tail", "again"),
    [
        ("step 12 loss 0.31 7.1 samples/s", TRACEBACK, False),
        ("step 13 loss 0.31", TRACEBACK, True),
        ("step 12 loss 0.31", (TRACEBACK[0], "ValueError: no such shard\n"), True),
        ("saved", TRACEBACK, True),
        ("step 12", ("RuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer\n",), True),
    ],
)
def test_three_times_the_same_is_no_chance(last_line: str, tail: tuple[str, ...], *, again: bool) -> None:
    policy = dataclasses.replace(POLICY, max_restarts=9)
    for attempt in range(2):
        decision = at_step(policy, attempt, "step 12 loss 0.30")
        assert decision.again
        policy = decision.policy
    decision = at_step(policy, 2, last_line, tail)
    assert decision.again is again
    if not again:
        assert decision.message == "no restart: IndexError at step 12 for the 3rd time"
