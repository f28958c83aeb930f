"""Whether a job that failed starts again, and on which hosts."""

from __future__ import annotations

import dataclasses

import pytest

from muster.deploy.hosts import hostfile
from muster.deploy.jobs.restart_policy import (
    NETWORK_SECONDS,
    Policy,
    awaits_network,
    backoff,
    decide,
    without,
)
from muster.deploy.launch.result import Failure

HOSTS = hostfile.parse("node[1-3] slots=2")
RANK = Failure("rank", "exit status 7", 7, host="node2", rank=3)
NETWORK = Failure("network", "all 3 hosts have been silent for 10 s", 1, at=100.0)
LOST = Failure("host", "the SSH connection to its agent is gone", 3, host="node3")
POLICY = Policy(max_restarts=2, min_hosts=2)


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
    decision = decide(LOST, HOSTS, 0, Policy(max_restarts=2, min_hosts=3))
    assert not decision.again
    assert decision.message == (
        "no restart: 2 hosts left, --min-hosts 3 (node3: the SSH connection to its agent is gone)"
    )


def test_no_more_restarts_than_were_allowed() -> None:
    assert names(RANK, attempt=1)
    assert decide(RANK, HOSTS, 2, POLICY).message == "no restart: that was the last of 2 restarts"
    assert not names(RANK, policy=Policy(0, 1))


def test_a_launch_whose_port_was_taken_starts_again_twice_beyond_what_was_allowed() -> None:
    taken = Failure("port", "a program of user bob took port 20123", 1, host="node1")
    policy, said = Policy(max_restarts=0, min_hosts=1), []
    for attempt in range(3):
        decision = decide(taken, HOSTS, attempt, policy)
        policy = policy.after(taken)
        said.append((len(decision.hosts), decision.message))
    again = "node1: a program of user bob took port 20123; the launch starts again with another port"
    assert said == [(3, again), (3, again), (0, "no restart: that was the last of 2 restarts")]
    assert policy.after(RANK) == policy


@pytest.mark.parametrize("kind", ["interrupted", "stopped", "placement"])
def test_what_another_attempt_would_not_change_is_final(kind: str) -> None:
    assert not names(dataclasses.replace(RANK, kind=kind))  # type: ignore[arg-type]


def test_what_the_user_wrote_is_final_but_a_rank_may_exit_with_2() -> None:
    assert not names(Failure("launcher", "--np 9: the hosts have 6 slots", 2))
    assert names(dataclasses.replace(RANK, exit_status=2))


@pytest.mark.parametrize("kind", ["launcher", "start"])
def test_a_launcher_may_do_better_on_the_same_hosts(kind: str) -> None:
    assert len(names(Failure(kind, "mpirun ended", 1, host="node1"))) == 3  # type: ignore[arg-type]


def test_every_host_that_is_unfit_now_is_named() -> None:
    decision = without({"node1": "no answer", "node3": "refused"}, HOSTS, 0, Policy(3, 1))
    assert [host.name for host in decision.hosts] == ["node2"]
    assert decision.message == "node1: no answer; node3: refused; restart 1 of 3 on node2"


def test_the_pause_before_a_restart_grows_but_not_for_ever() -> None:
    pauses = [backoff(attempt) for attempt in range(20)]
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < pauses[-1] == pauses[-2]
    assert sum(pauses) < 60, "twenty restarts wait for a minute"
