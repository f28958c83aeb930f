"""A port that another program takes after the agent let go of it and before rank 0 listens there."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from muster.deploy.cli.shared import TRAIN
from muster.deploy.core.connect.opener import access_with
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.job.events import Event, Said
from muster.deploy.core.job.feature import Attempt, Feature
from muster.deploy.core.job.job import Job
from muster.deploy.core.job.result import LaunchResult
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.core.job.verdict import verdict
from muster.deploy.core.plan.launch_plan import LaunchPlan
from muster.deploy.core.plan.source_tree import of_package, scan
from muster.deploy.core.plan.spec import LauncherName, LaunchSpec, Program
from muster.deploy.features.all_features import features_of
from tests.launching import Project

# Under torchrun it is torchrun itself that listens for the ranks.
MEETS = """
import os, socket
if os.environ["RANK"] == "0" and "TORCHELASTIC_RUN_ID" not in os.environ:
    socket.create_server(("", int(os.environ["MASTER_PORT"])))
print("met")
"""
Launch = Callable[[LauncherName, int], tuple[LaunchResult, list[str]]]


class Listener(Feature):
    """Keeps the driver's own lines, and steals the port of each attempt."""

    def __init__(self, steal: Callable[[LaunchPlan], None]) -> None:
        self._steal = steal
        self.said: list[str] = []

    def begins(self, attempt: Attempt) -> None:
        self._steal(attempt.plan)

    def on_event(self, event: Event) -> None:
        # A note about the job of another test may come too.
        if isinstance(event, Said) and "note: localhost is busy: " not in event.text:
            self.said.append(event.text)


@pytest.fixture
def launch(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """A launch of which a thief takes the first ports; its result, and what was said."""
    (project.path / "meets.py").write_text(MEETS)
    monkeypatch.setenv("HOME", project.env["HOME"])
    with ExitStack() as thieves:

        def carry_out(launcher: LauncherName, thefts: int) -> tuple[LaunchResult, list[str]]:
            left = iter(range(thefts))

            def steal(plan: LaunchPlan) -> None:
                if next(left, None) is not None:
                    port = int(plan.hosts[0].env["MASTER_PORT"])
                    thieves.enter_context(socket.create_server(("", port)))

            spec = LaunchSpec(
                job=f"theft-{os.getpid()}",
                program=Program(script="meets.py"),
                launcher=launcher,
                np=2,
                hosts=hostfile.parse("localhost slots=2"),
                tree=scan(project.path),
                library=of_package(TRAIN),
                start_timeout=120.0,
            )
            folder, listener = RunFolder(Path(project.path, "runs"), spec.job), Listener(steal)
            result = Job(spec, access_with(None, "").open, folder, features_of(spec, listener)).run()
            return result, [*listener.said, verdict(result, folder)]

        yield carry_out


@pytest.mark.parametrize("launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.soak)])
def test_a_launch_whose_port_was_taken_starts_again_with_another(
    launch: Launch, launcher: LauncherName
) -> None:
    result, said = launch(launcher, 1)
    assert result.exit_status == 0, said
    taken = f"a program of user {getpass.getuser()} took the rendezvous port"
    assert [taken in line for line in said] == [False, True, False, False]
    assert said[1].endswith("before rank 0 bound it; the launch starts again with another port")


def test_a_port_that_is_taken_again_and_again_is_the_verdict(launch: Launch) -> None:
    result, said = launch("mpirun", 9)
    assert (result.exit_status, result.failure and result.failure.kind) == (1, "port")
    assert "FAILED  localhost: a program of user" in said[-1]
    assert "| rank 0 on localhost: exit status 1" in said[-1]
    assert "Address already in use" in said[-1]
