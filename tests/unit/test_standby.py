"""The standby driver of a detached job: when it takes over, and when it must not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.deploy.cli.options import require_standby
from muster.deploy.connect.requests.jobs import JobState
from muster.deploy.errors import MusterError, UsageError
from muster.deploy.hosts import hostfile
from muster.deploy.jobs import runner, standby_main
from muster.deploy.jobs.control import JobRecords, LocatedJob, merged
from muster.deploy.jobs.fence import TakenOverError
from muster.deploy.jobs.run_folder import RunFolder
from muster.deploy.jobs.runner import Attempts
from muster.deploy.jobs.standby import NOT_NEEDED, Standby
from muster.deploy.launch.result import Failure, LaunchResult
from muster.deploy.plan.launcher import place_ranks
from muster.deploy.plan.program import Program
from muster.deploy.plan.source_tree import Tree, scan
from muster.deploy.plan.spec import LaunchSpec
from tests.hosts_here import HostsHere
from tests.launching import processes_of
from tests.unit.plans import TREE, make_plan
from tests.unit.test_attempts import Connected, looping
from tests.waiting import wait_until

JOB = "20261120-120000-abcd"
SPEC = LaunchSpec(
    job=JOB,
    program=Program(module="train"),
    hosts=hostfile.parse("node[1-3] slots=2"),
    tree=TREE,
    library=TREE,
    standby=True,
    may_restart=True,
    max_restarts=2,
    min_hosts=2,
)


def test_a_standby_driver_waits_until_its_agent_is_gone() -> None:
    program = "from muster.deploy.jobs import standby_main as it; print('here', flush=True)"
    program += "; it._await_end_of_agent()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline() == b"here\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.stdout.close()
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("outcomes", "tries"),
    [
        ([MusterError("1 of 3"), MusterError("1 of 3"), None], 3),
        ([MusterError("1 of 3"), TakenOverError("node2")], 2),
    ],
    ids=["a majority in the end", "another driver"],
)
def test_it_tries_until_it_has_the_hosts_or_another_driver_has_them(
    outcomes: list[MusterError | None], tries: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [*outcomes]

    def drive(*given: object) -> None:
        if error := left.pop(0):
            raise error

    monkeypatch.setattr(standby_main, "_drive", drive)
    monkeypatch.setattr(standby_main, "PAUSE_SECONDS", 0.0)
    standby_main.take_over(SPEC, tmp_path, lambda host: pytest.fail("no way there"))
    assert len(outcomes) - len(left) == tries


def test_it_starts_nothing_when_it_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby_main, "_drive", lambda *given: pytest.fail("the job is over"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / NOT_NEEDED).touch()
    standby_main.take_over(SPEC, tmp_path, lambda host: pytest.fail("no way there"))


def test_a_standby_driver_starts_with_the_hosts_that_are_left_and_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.json").write_text(json.dumps({"attempt": 4, "started": 7.0}))
    made: list[Any] = []

    def attempts_of(spec: LaunchSpec, open_pipe: object, run: RunFolder, *, unreached: object) -> Any:
        made.append((spec.attempt, run.record["started"], unreached))
        return SimpleNamespace(run=lambda: None)

    monkeypatch.setattr(standby_main, "_unreached", lambda *given: {"node3": "no route"})
    monkeypatch.setattr(standby_main, "attempts_of", attempts_of)
    monkeypatch.setattr(standby_main, "notify", lambda *given: "")
    standby_main._drive(SPEC, tmp_path, lambda host: pytest.fail("no way there"))
    assert made == [(5, 7.0, {"node3": "no route"})]
    monkeypatch.setattr(standby_main, "_unreached", lambda *given: dict.fromkeys(("node2", "node3"), "no"))
    with pytest.raises(MusterError, match="1 of the job's 3 hosts are left"):
        standby_main._drive(SPEC, tmp_path, lambda host: pytest.fail("no way there"))


def test_a_driver_whose_job_was_taken_over_ends_without_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, claims = make_plan("node[1-3] slots=2"), list[int]()
    lost = Failure("driver", "this driver did not run for 30 s", 3)

    def claim(cluster: object, spec: LaunchSpec, term: int) -> None:
        claims.append(term)
        if len(claims) == 2:
            raise TakenOverError("another driver has the job, or has ended it: node2, node3")

    monkeypatch.setattr(runner, "Cluster", Connected)
    monkeypatch.setattr(runner, "make_plan", lambda *given, **options: plan)
    monkeypatch.setattr(runner, "deliver", lambda *given: None)
    monkeypatch.setattr(runner, "claim", claim)
    monkeypatch.setattr(
        runner, "LaunchLoop", looping(lambda *_, **__: LaunchResult(plan, 1.0, 2.0, lost, {}))
    )
    monkeypatch.setattr("muster.deploy.jobs.restart_policy.BACKOFF_SECONDS", (0.0,))
    monkeypatch.setattr(
        Connected,
        "hand_on",
        lambda self, names: SimpleNamespace(close=lambda: None, taken=set()),
        raising=False,
    )
    folder = RunFolder(tmp_path, JOB, detached=True)
    with pytest.raises(TakenOverError):
        Attempts(SPEC, lambda host: pytest.fail("no way there"), folder, (folder,)).run()
    assert claims == [0, 0]
    assert not (folder.path / "result.json").exists()


def test_of_a_job_with_several_drivers_the_newest_one_counts() -> None:
    def located(term: int, state: str) -> LocatedJob:
        described = SimpleNamespace(job=JOB, term=term, state=state, started=1.0)
        return LocatedJob(cast(JobState, described), cast(JobRecords, None))

    for order in ((0, 1), (1, 0)):
        (job,) = merged(located(term, ("lost", "running")[term]) for term in order)
        assert job.state.state == "running"


@pytest.mark.parametrize(
    ("hosts", "np", "spares", "fits"), [(3, 6, 0, True), (2, 4, 0, False), (5, 6, 0, False), (5, 6, 1, True)]
)
def test_more_than_half_of_the_hosts_must_be_left_without_the_first_one(
    hosts: int, np: int, spares: int, fits: bool
) -> None:
    listed = hostfile.parse(f"node[1-{hosts}] slots=2")
    placement = place_ranks(listed, LaunchSpec(job="j", program=Program(), np=np, spares=spares))
    if fits:
        require_standby(listed, placement)
    else:
        with pytest.raises(UsageError, match="--standby: the job would use"):
            require_standby(listed, placement)


def test_a_standby_driver_gets_the_job_waits_and_ends_with_it(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("print(1)")
    here = HostsHere(tmp_path / "homes", 1)
    tree = scan(tmp_path / "project")
    spec = LaunchSpec(
        job=JOB,
        program=Program(script="train.py"),
        hosts=here.hosts,
        tree=tree,
        library=Tree(tmp_path, ".", ()),
    )
    standby, said = Standby(spec, here.open), list[str]()
    standby.ensure(here.hosts)
    wait_until(lambda: said.extend(standby.lines()) or bool(said), "its first line")  # type: ignore[func-returns-value]
    assert said == ["a standby driver waits on node1"]
    run = here.home("node1") / ".muster" / "jobs" / JOB / "run"
    standby.ensure(here.hosts)
    standby.record("job.json", {"attempt": 3})
    wait_until((run / "job.json").exists, "the record")
    standby.end()
    assert (run / NOT_NEEDED).exists()
    assert standby.lines() == []
    wait_until(lambda: not processes_of(str(run.parent)), "the end of its process")
    assert (run / "driver.log").read_text() == ""
