"""Ranks that start a launcher of ranks are noted: each is a job of its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from muster.deploy.core.hosts.host_sample import HostSample, RankSample
from muster.deploy.core.job.events import Event, Said
from muster.deploy.core.job.result import LaunchResult
from muster.deploy.features.nested.driver import NestedLaunchers, nested
from tests.unit.attempts import attempt_of
from tests.unit.plans import make_plan


@pytest.mark.parametrize(
    ("hosts", "started", "said"),
    [
        (
            "node1 slots=2",
            {0: "torchrun train.py", 1: "torchrun train.py"},
            "ranks 0-1 each started torchrun: these are 2 separate jobs, not one; launch train.py itself, or "
            "give each host one rank: --slots 1",
        ),
        (
            "node[1-2]",
            {0: "mpirun", 1: "mpirun"},
            "ranks 0-1 each started mpirun: these are 2 separate jobs, not one; launch its program itself",
        ),
        ("node1 slots=2", {0: "torchrun a;b.py", 1: "torchrun a;b.py"}, "launch 'a;b.py' itself"),
        ("node1", {0: "torchrun train.py"}, ""),
        ("node1 slots=2", {}, ""),
    ],
)
def test_the_note_says_what_to_launch(hosts: str, started: dict[int, str], said: str) -> None:
    text = nested(started, make_plan(hosts))
    assert said in text
    assert bool(text) == bool(said)


def test_it_is_said_once_while_the_ranks_run_and_in_the_verdict(tmp_path: Path) -> None:
    plan, feature, said = make_plan("node1 slots=2"), NestedLaunchers(), list[Event]()
    attempt = attempt_of(plan, emit=said.append)
    feature.begins(attempt)
    for number in (0, 1):
        rank = RankSample(number, launcher="torchrun train.py")
        feature.on_event(HostSample(1.0, "node1", ranks=(rank,)))
        feature.turn(attempt)
        feature.turn(attempt)
    text = nested({0: "torchrun train.py", 1: "torchrun train.py"}, plan)
    assert said == [Said(f"note: {text}")]
    done = LaunchResult(plan=plan, started=1.0, ended=2.0, failure=None, ends={})
    assert feature.ended(attempt, done) == dataclasses.replace(done, notes=(text,))
    feature.begins(attempt)
    assert feature.ended(attempt, done) == done
