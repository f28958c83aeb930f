"""A lost host that answers again takes part in the next attempt, which `--grow` brings about."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.connect import reserve
from muster.deploy.connect.pipe import Pipe
from muster.deploy.connect.transports.process import LocalPipe
from muster.deploy.errors import HostError
from muster.deploy.hosts import hostfile
from muster.deploy.hosts.hostfile import Host
from muster.deploy.jobs import background, restart_policy, runner
from muster.deploy.jobs.run_folder import RunFolder
from muster.deploy.jobs.runner import Attempts
from muster.deploy.launch.result import Failure, LaunchResult
from muster.deploy.plan.launch_plan import LaunchPlan
from muster.deploy.plan.placement import Placement
from muster.deploy.plan.program import Program
from muster.deploy.plan.spec import LaunchSpec
from tests.unit.plans import TREE, make_plan
from tests.waiting import wait_until

HOSTS = hostfile.parse("node[1-2] slots=2")
LOST = Failure("host", "the SSH connection to its agent is gone", 3, host="node2")
SAVED = Failure("rank", "exit status 75", 75, host="node1", rank=0)
FAILED = dataclasses.replace(SAVED, reason="exit status 1", exit_status=1)


class Job:
    """A job with agents of this machine: node2 is lost, and answers again in the second attempt."""

    def __init__(self, folder: RunFolder, *, grow: bool) -> None:
        self.folder, self.grow = folder, grow
        self.hosts: list[list[str]] = []
        self.down: set[str] = set()
        self.growth = SimpleNamespace(sent=False, look=self.send)

    def open_pipe(self, host: Host) -> Pipe:
        if host.name in self.down:
            raise HostError("ssh.unreachable", "no route to it")
        return LocalPipe(None)

    def send(self) -> bool:
        self.growth.sent = True
        return True

    def plan(self, spec: LaunchSpec, placement: Placement, *given: Any, **options: Any) -> LaunchPlan:
        names = [host.name for host in placement.hosts]
        self.hosts.append(names)
        return make_plan("\n".join(f"{name} slots=2" for name in names), attempt=spec.attempt)

    def loop(self, plan: LaunchPlan, *given: Any, on_turn: Callable[[], None], **options: Any) -> Any:
        return SimpleNamespace(run=lambda: self.end(plan, on_turn))

    def end(self, plan: LaunchPlan, on_turn: Callable[[], None]) -> LaunchResult:
        """The end of each attempt."""
        attempt, failure = len(self.hosts), None
        if attempt == 1:
            self.down, failure = {"node2"}, LOST
        if attempt == 2:
            self.down, failure = set(), SAVED if self.grow else FAILED
            wait_until(lambda: self.turned(on_turn), "node2")
        return LaunchResult(plan, 1.0, 2.0, failure, {}, cleared=frozenset({"node1"}))

    def turned(self, on_turn: Callable[[], None]) -> bool:
        """Make a turn; returns whether node2 has answered, and the job grows if it shall."""
        on_turn()
        said = (self.folder.logs / "driver.log").read_text()
        return "node2 answers again" in said and self.growth.sent == self.grow


@pytest.fixture(params=[False, True], ids=["restart", "grow"])
def job(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    made = Job(RunFolder(tmp_path, "20261120-120000-abcd", detached=True), grow=request.param)
    monkeypatch.setattr(reserve, "PAUSES", (0.01,))
    monkeypatch.setattr(restart_policy, "BACKOFF_SECONDS", (0.0,))
    monkeypatch.setattr(runner, "make_plan", made.plan)
    monkeypatch.setattr(runner, "deliver", lambda *given: None)
    monkeypatch.setattr(runner, "LaunchLoop", made.loop)
    monkeypatch.setattr(background, "Growth", lambda channels: made.growth)
    return made


def test_a_lost_host_that_answers_again_takes_part_in_the_next_attempt(job: Job) -> None:
    spec = LaunchSpec(
        job=job.folder.path.name,
        program=Program(module="train"),
        hosts=HOSTS,
        tree=TREE,
        library=TREE,
        may_restart=True,
        max_restarts=1 if job.grow else 2,  # the attempt with more ranks does not count
        grow=job.grow,
    )
    result = Attempts(spec, job.open_pipe, job.folder, (job.folder,)).run()
    assert job.hosts == [["node1", "node2"], ["node1"], ["node1", "node2"]]
    assert (result.failure, result.left_out) == (None, {})
