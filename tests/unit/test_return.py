"""A lost host that answers again takes part in the next attempt."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.core.connect import kept_connections as reserve
from muster.deploy.core.connect.pipe import Pipe
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.errors import HostError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.core.job import restart_policy
from muster.deploy.core.job.feature import Attempt, Feature, Features, Start
from muster.deploy.core.job.job import Job
from muster.deploy.core.job.result import Failure, LaunchResult
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.core.plan.launch_plan import LaunchPlan
from muster.deploy.core.plan.spec import LaunchSpec, Program
from muster.deploy.features.all_features import features_of
from tests.unit.plans import TREE, make_plan
from tests.waiting import wait_until

HOSTS = hostfile.parse("node[1-2] slots=2")
LOST = Failure("host", "the SSH connection to its agent is gone", 3, host="node2")
FAILED = Failure("rank", "exit status 1", 1, host="node1", rank=0)


class JobHere:
    """A job with agents of this machine: node2 is lost, and answers again in the second attempt."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.hosts: list[list[str]] = []
        self.down: set[str] = set()

    def open_pipe(self, host: Host) -> Pipe:
        if host.name in self.down:
            raise HostError("ssh.unreachable", "no route to it")
        return LocalPipe(None)

    def plan(self, start: Start, *given: Any) -> LaunchPlan:
        names = [host.name for host in start.placement.hosts]
        self.hosts.append(names)
        return make_plan(
            "\n".join(f"{name} slots=2" for name in names), attempt=start.spec.attempt, hosts=HOSTS
        )

    def loop(self, attempt: Attempt, features: Features) -> Any:
        return SimpleNamespace(run=lambda: self.end(attempt, features))

    def end(self, begun: Attempt, features: Features) -> LaunchResult:
        """The end of each attempt."""
        attempt, failure = len(self.hosts), None
        if attempt == 1:
            self.down, failure = {"node2"}, LOST
        if attempt == 2:
            self.down, failure = set(), FAILED
            wait_until(lambda: self.turned(begun, features), "node2")
        return LaunchResult(begun.plan, 1.0, 2.0, failure, {}, cleared=frozenset({"node1"}))

    def turned(self, begun: Attempt, features: Features) -> bool:
        """Make a turn; returns whether node2 has answered."""
        features.tell(Feature.turn, begun)
        return "node2 answers again" in (self.folder.logs / "driver.log").read_text()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobHere:
    made = JobHere(RunFolder(tmp_path, "20261120-120000-abcd", detached=True))
    monkeypatch.setattr(reserve, "PAUSES", (0.01,))
    monkeypatch.setattr(restart_policy, "BACKOFF_SECONDS", (0.0,))
    monkeypatch.setattr("muster.deploy.core.job.job.make_plan", made.plan)
    monkeypatch.setattr("muster.deploy.core.job.job.deliver", lambda *given: None)
    monkeypatch.setattr("muster.deploy.core.job.job.LaunchLoop", made.loop)
    return made


def test_a_lost_host_that_answers_again_takes_part_in_the_next_attempt(job: JobHere) -> None:
    spec = LaunchSpec(
        job=job.folder.path.name,
        program=Program(module="train"),
        hosts=HOSTS,
        tree=TREE,
        library=TREE,
        may_restart=True,
        max_restarts=2,
    )
    result = Job(spec, job.open_pipe, job.folder, features_of(spec)).run()
    assert job.hosts == [["node1", "node2"], ["node1"], ["node1", "node2"]]
    assert (result.failure, result.left_out) == (None, {})
